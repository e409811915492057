"""A time-stamp server of the test's own, which is asked for every signature."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from magi2.config.settings import Settings
from magi2.delivery.credentials import Signer, read_signature
from tests.delivery.authority import make_signing
from tests.delivery.samples import write_mp4

pytestmark = [pytest.mark.slow, pytest.mark.programs("openssl")]

CONFIG = """
[stamps]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
ess_cert_id_alg = sha256
"""


@pytest.fixture
def time_stamps(tmp_path: Path) -> Iterator[str]:
    """The address of a server that stamps what it is sent, as RFC 3161 has it."""
    folder = tmp_path / "stamps"
    stamper = make_signing(folder, rsa.generate_private_key(65537, 2048), usage=ExtendedKeyUsageOID.TIME_STAMPING)
    (folder / "serial").write_text("01")
    (folder / "stamps.cnf").write_text(CONFIG.format(folder=folder))
    command = ("openssl", "ts", "-reply", "-queryfile", "/dev/stdin", "-config", str(folder / "stamps.cnf"))
    keys = ("-section", "stamps", "-inkey", str(stamper.key), "-signer", str(stamper.certificate))

    class Stamper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["Content-Length"]))
            more = ("-chain", str(stamper.authority))
            reply = subprocess.run([*command, *keys, *more], input=query, capture_output=True, check=True).stdout
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *words: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stamper) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_signature_says_when_it_was_made_by_the_servers_word(tmp_path: Path, time_stamps: str) -> None:
    signing = make_signing(tmp_path / "signing")
    environment = {**signing.environment, "MAGI2_C2PA_TIMESTAMP_URL": time_stamps}
    signer = Signer.of(Settings.from_environment(environment))
    assert signer is not None and signer.self_test().endswith("with time stamps")
    signer.sign(write_mp4(tmp_path / "clip.mp4"), tmp_path / "signed.mp4")
    found = read_signature(tmp_path / "signed.mp4", signing.authority)
    assert found.state == "trusted" and found.at is not None
    assert abs(datetime.fromisoformat(found.at) - datetime.now(UTC)) < timedelta(hours=1)
