"""Signing a copy with the deployment's certificate, by key or command, and reading what a signature is worth."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from magi2.config.settings import Settings
from magi2.delivery import credentials
from magi2.delivery.credentials import Signer, read_signature
from magi2.errors import ConfigError, InfrastructureError, Magi2Error, MissingToolError
from tests.delivery.authority import SIGNER, Signing, make_signing
from tests.delivery.samples import flip_bit, write_mp4

KEYS = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mp4(tmp_path_factory.mktemp("clip") / "clip.mp4", AIGC='{"Label": "1"}')


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Signing:
    return make_signing(tmp_path_factory.mktemp("signing"))


def signer_of(signing: Signing, **more: str) -> Signer:
    found = Signer.of(Settings.from_environment({**signing.environment, **more}))
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_copy_is_signed_by_every_kind_of_key_and_the_original_stays(clip: Path, tmp_path: Path, kind: str) -> None:
    signing, before = make_signing(tmp_path / "pem", KEYS[kind]()), clip.read_bytes()
    signer_of(signing).sign(clip, tmp_path / "signed.mp4")
    assert clip.read_bytes() == before and read_signature(clip).state == "none"
    found = read_signature(tmp_path / "signed.mp4")
    assert (found.state, found.by, found.problems) == ("valid", SIGNER, ())
    assert read_signature(tmp_path / "signed.mp4", signing.authority).state == "trusted"
    assert b'{"Label": "1"}' in (tmp_path / "signed.mp4").read_bytes()


def test_signer_of_another_authority_is_not_trusted(clip: Path, signing: Signing, tmp_path: Path) -> None:
    signer_of(signing).sign(clip, tmp_path / "signed.mp4")
    other = make_signing(tmp_path / "other")
    found = read_signature(tmp_path / "signed.mp4", other.authority)
    assert found.state != "trusted" and "signingCredential.untrusted" in found.problems


def test_flipped_bit_of_picture_metadata_or_claim_is_found(clip: Path, signing: Signing, tmp_path: Path) -> None:
    signed = tmp_path / "signed.mp4"
    signer_of(signing).sign(clip, signed)
    content = signed.read_bytes()
    for where in (b"mdat", b"moov", b"AIGC", b"trainedAlgorithmicMedia"):
        signed.write_bytes(content)
        flip_bit(signed, content.index(where) + 20)
        found = read_signature(signed)
        assert found.state == "invalid" and found.problems, where
    signed.write_bytes(content)
    assert read_signature(signed).state == "valid"


def test_no_signatures_are_made_where_none_are_asked_for() -> None:
    assert Signer.of(Settings()) is None
    assert Signer.of(Settings(c2pa_trust=Path("/nowhere"))) is None


def test_what_keeps_a_deployment_from_signing_is_refused_by_name(signing: Signing, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    (tmp_path / "bad.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    expired, other = make_signing(tmp_path / "expired", days=-1), make_signing(tmp_path / "other")
    wrong: dict[str, dict[str, Any]] = {
        "MAGI2_C2PA_CERTIFICATE is not set": {"c2pa_key": signing.key},
        "one of MAGI2_C2PA_KEY and MAGI2_C2PA_COMMAND": {"c2pa_certificate": signing.certificate},
        "CERTIFICATE=.*No such file": {"c2pa_certificate": tmp_path / "absent.pem", "c2pa_key": signing.key},
        "is no PEM file": {"c2pa_certificate": tmp_path / "empty.pem", "c2pa_key": signing.key},
        "no certificate that can be read": {"c2pa_certificate": tmp_path / "bad.pem", "c2pa_key": signing.key},
        "is valid from": {"c2pa_certificate": expired.certificate, "c2pa_key": expired.key},
        "is not the key of": {"c2pa_certificate": signing.certificate, "c2pa_key": other.key},
        "is no private key": {"c2pa_certificate": signing.certificate, "c2pa_key": signing.certificate},
    }
    for message, settings in wrong.items():
        with pytest.raises(ConfigError, match=message):
            Signer.of(Settings(**settings))


def test_certificate_for_other_uses_is_found_before_any_clip(tmp_path: Path, clip: Path) -> None:
    signer = signer_of(make_signing(tmp_path, usage=None))
    with pytest.raises(ConfigError, match="cannot be signed"):
        signer.self_test()
    with pytest.raises(ConfigError, match="cannot be signed"):
        signer.sign(clip, tmp_path / "signed.mp4")
    assert not (tmp_path / "signed.mp4").exists()


def test_time_stamp_server_that_gives_nothing_keeps_a_clip_from_being_signed(
    signing: Signing, clip: Path, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/?token=s3cret"
        with pytest.raises(InfrastructureError, match="TIMESTAMP_URL gives no time stamp") as failed:
            signer_of(signing, MAGI2_C2PA_TIMESTAMP_URL=address).sign(clip, tmp_path / "signed.mp4")
    assert "s3cret" not in str(failed.value) and not (tmp_path / "signed.mp4").exists()
    with pytest.raises(ConfigError, match="is no http address"):
        signer_of(signing, MAGI2_C2PA_TIMESTAMP_URL="file:///etc/passwd")


def test_self_test_says_who_signs(signing: Signing) -> None:
    assert signer_of(signing).self_test() == f"clips are signed by {SIGNER}, ES256"


def test_missing_extra_is_an_error_that_says_what_to_install(signing: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match=r"magi2\[c2pa\]"):
        signer_of(signing)


def test_key_shows_in_no_error_and_no_log(
    signing: Signing, tmp_path: Path, caplog: pytest.LogCaptureFixture, clip: Path
) -> None:
    text = signing.key.read_text()
    (tmp_path / "broken.key").write_text(text[:-60] + text[-40:])
    secret = text.splitlines()[1]
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigError) as refused:
        signer_of(signing, MAGI2_C2PA_KEY=str(tmp_path / "broken.key"))
    signer_of(signing).sign(clip, tmp_path / "signed.mp4")
    assert not [part for part in (str(refused.value), caplog.text) if secret[:20] in part]


def test_key_in_the_certificates_file_does_not_leave_it(signing: Signing, tmp_path: Path, clip: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(signing.key.read_bytes() + signing.certificate.read_bytes())
    signer = signer_of(signing, MAGI2_C2PA_CERTIFICATE=str(both), MAGI2_C2PA_KEY=str(both))
    signer.sign(clip, tmp_path / "signed.mp4")
    assert read_signature(tmp_path / "signed.mp4", signing.authority).state == "trusted"
    assert "PRIVATE" not in repr(vars(signer))


def test_file_that_is_no_clip_is_no_signature(tmp_path: Path) -> None:
    for content in (b"", b"\0" * 100, b"\0\0\0\x20ftypisom" + b"\xff" * 500):
        (tmp_path / "odd.mp4").write_bytes(content)
        assert read_signature(tmp_path / "odd.mp4").state in ("none", "invalid")


@pytest.mark.slow
def test_command_signs_in_place_of_a_key(signing: Signing, clip: Path, tmp_path: Path) -> None:
    signer = by_command(signing, "openssl", "dgst", "-sha256", "-sign", str(signing.key))
    signer.sign(clip, tmp_path / "signed.mp4")
    assert read_signature(tmp_path / "signed.mp4", signing.authority).state == "trusted"


@pytest.mark.slow
def test_command_is_run_without_a_shell_and_what_it_says_is_not_repeated(
    signing: Signing, clip: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    say = "import sys; print(sys.argv[1], file=sys.stderr); sys.exit(3)"
    wrong: dict[str, tuple[type[Magi2Error], tuple[str, ...]]] = {
        "python3 ended with 3": (InfrastructureError, ("python3", "-c", say, "s3cret; touch here")),
        "gave no signature": (InfrastructureError, ("true", "s3cret")),
        "is no signature in DER": (ConfigError, ("echo", "s3cret")),
        "does not start": (ConfigError, (str(tmp_path / "absent"), "s3cret")),
    }
    for message, (kind, command) in wrong.items():
        with pytest.raises(kind, match=message) as failed:
            by_command(signing, *command).sign(clip, tmp_path / "signed.mp4")
        assert "s3cret" not in str(failed.value) + caplog.text
        assert not (tmp_path / "signed.mp4").exists()
    assert not list(tmp_path.glob("here*")) and not Path("here").exists()


@pytest.mark.slow
def test_command_that_hangs_is_ended_with_what_it_started(signing: Signing, clip: Path, tmp_path: Path) -> None:
    hanging = ("sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(InfrastructureError, match=r"no signature in 0.5 s"):
        by_command(signing, *hanging, MAGI2_C2PA_TIMEOUT_S="0.5").sign(clip, tmp_path / "signed.mp4")
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    assert not child.exists() or "\nState:\tZ" in (child / "status").read_text()


def by_command(signing: Signing, *command: str, **more: str) -> Signer:
    environment = {"MAGI2_C2PA_CERTIFICATE": str(signing.certificate), "MAGI2_C2PA_COMMAND": json.dumps(command)}
    found = Signer.of(Settings.from_environment({**environment, **more}))
    assert found is not None
    return found
