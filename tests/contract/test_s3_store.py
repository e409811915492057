"""What only a store in a bucket can get wrong: the server, the credentials, the network, local copies."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from minio.credentials import StaticProvider

from magi2.artifacts import Manifest, ManifestDraft, Recipe, open_store
from magi2.artifacts import s3 as s3_module
from magi2.artifacts.s3 import KEPT_DOWNLOADS, S3Store
from magi2.artifacts.s3_requests import abort_upload, begun_uploads
from magi2.errors import ConfigError, InfrastructureError, InputError
from magi2.runtime.run_folder import run_folder

RECIPE = Recipe("preview", 1, seed=7)


def open_lab(server: Any, scratch: Path, **changes: Any) -> S3Store:
    values = {"bucket": server.bucket, "endpoint": server.endpoint, "prefix": f"s3/{secrets.token_hex(8)}"}
    credentials = changes.pop("credentials", StaticProvider(server.access_key, server.secret_key))
    return S3Store(**{**values, **changes}, credentials=credentials, scratch=scratch)


def publish(store: S3Store, contents: dict[str, bytes]) -> Manifest:
    with store.stage_folder("preview", RECIPE.key) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        return store.publish(ManifestDraft(RECIPE), {name: folder / name for name in contents})


# Dies right before its n-th request to the server; ends well when it needs fewer.
KILLED = r"""
import os, signal, sys
from pathlib import Path
import urllib3
from magi2.artifacts import ManifestDraft, Recipe, open_store
url, scratch, limit, action = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
real, count = urllib3.PoolManager.urlopen, 0
def urlopen(*args, **options):
    global count
    count += 1
    if count == limit:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
urllib3.PoolManager.urlopen = urlopen
store, recipe = open_store(url, scratch=scratch), Recipe("preview", 1, seed=7)
if action == "remove":
    store.remove("preview", recipe.key)
else:
    with store.stage_folder("preview", recipe.key) as folder:
        (folder / "a.bin").write_bytes(b"abc")
        (folder / "b.bin").write_bytes(b"xyz")
        store.publish(ManifestDraft(recipe), {"a.bin": folder / "a.bin", "b.bin": folder / "b.bin"})
"""


@pytest.mark.parametrize("action", ["publish", "remove"])
def test_process_killed_before_any_request_leaves_nothing_or_everything(
    s3_server: Any, tmp_path: Path, action: str
) -> None:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
    }
    states = []
    for limit in range(1, 40):
        store = open_lab(s3_server, tmp_path, region="us-east-1")
        if action == "remove":
            publish(store, {"a.bin": b"abc", "b.bin": b"xyz"})
        command = [sys.executable, "-c", KILLED, store.url, str(tmp_path), str(limit), action]
        code = subprocess.run(command, env=environment, timeout=60).returncode
        states.append(store.find("preview", RECIPE.key) is not None)
        if states[-1]:
            assert store.fetch("preview", RECIPE.key, "b.bin").read_bytes() == b"xyz"
        publish(store, {"a.bin": b"abc", "b.bin": b"xyz"})
        store.sweep(older_than_hours=0)
        assert len(list(store._list("artifacts"))) == 3
        if code == 0:
            break
    assert code == 0
    assert len(states) > 3
    assert states == sorted(states, reverse=action == "remove")


def test_large_payload_goes_up_in_parts(s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "PART_SIZE_BYTES", 5 * 2**20)
    store = open_lab(s3_server, tmp_path)
    content = os.urandom(2**20) * 12
    publish(store, {"intermediate.mkv": content})
    assert store.fetch("preview", RECIPE.key, "intermediate.mkv").read_bytes() == content


def test_fetched_files_outlive_the_store_object_and_are_bounded(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path)
    publish(store, {"a.bin": b"abc"})
    paths = [store.fetch("preview", RECIPE.key, "a.bin") for _ in range(KEPT_DOWNLOADS + 3)]
    del store
    assert [path.exists() for path in paths] == [False] * 3 + [True] * KEPT_DOWNLOADS


def test_local_copies_are_gone_when_the_process_ends(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path)
    publish(store, {"a.bin": b"abc"})
    code = (
        "import sys; from pathlib import Path; from magi2.artifacts import open_store\n"
        "print(open_store(sys.argv[1], scratch=Path(sys.argv[2])).fetch('preview', sys.argv[3], 'a.bin'))"
    )
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
    }
    command = [sys.executable, "-c", code, store.url, str(tmp_path / "other"), RECIPE.key]
    path = Path(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip())
    assert path.parent.parent == tmp_path / "other"
    assert not path.parent.exists()


def test_sweep_leaves_locks_running_jobs_and_logs_of_the_host_alone(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    lock = run_folder(tmp_path / f"magi2-{os.getuid()}") / "accelerators.lock"
    lock.touch()
    store = open_store(f"s3://{s3_server.bucket}/swept?endpoint={s3_server.endpoint}")
    with store.stage_folder("preview", RECIPE.key) as folder:
        assert store.sweep(older_than_hours=0) == [f"scratch/{folder.name}"]
    assert lock.exists()


def test_wrong_credentials_are_not_retried(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path, credentials=StaticProvider(s3_server.access_key, "wrong-secret"))
    with pytest.raises(ConfigError, match="SignatureDoesNotMatch"):
        store.get_document("report.json")


def test_missing_bucket_is_named(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path, bucket="no-such-bucket")
    with pytest.raises(ConfigError, match="no-such-bucket"):
        store.self_test()


def test_absent_credentials_are_a_setting_to_fix(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "MINIO_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "absent"))
    store = open_store(f"s3://{s3_server.bucket}?endpoint={s3_server.endpoint}", scratch=tmp_path)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        store.get_document("report.json")


def test_unreachable_server_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_RETRIES", s3_module._RETRIES.new(total=1, backoff_factor=0))
    store = S3Store(
        "clips",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        credentials=StaticProvider("a", "b"),
        scratch=tmp_path,
    )
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9") as caught:
        store.get_document("report.json")
    assert caught.value.retryable


class CarelessHandler(BaseHTTPRequestHandler):
    """A server that takes every write and ignores conditions."""

    content = b""

    def do_PUT(self) -> None:
        type(self).content = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"", {"ETag": '"0"'})

    def do_GET(self) -> None:
        self._answer(200, self.content, {})

    def do_DELETE(self) -> None:
        self._answer(204, b"", {})

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def test_server_that_ignores_conditions_is_refused_without_a_lock(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), CarelessHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        store = S3Store(
            "clips",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            region="us-east-1",
            credentials=StaticProvider("a", "b"),
            scratch=tmp_path,
        )
        with pytest.raises(ConfigError, match=r"ignores If-None-Match.*MAGI2_CATALOG"):
            store.self_test()
        with pytest.raises(ConfigError, match="ignores If-None-Match"):
            store._create("artifacts/manifest.json", b"first")
    finally:
        server.shutdown()
        server.server_close()


def test_upload_of_another_size_is_noticed(s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_lab(s3_server, tmp_path)
    monkeypatch.setattr(S3Store, "_size", lambda self, name: 2)
    with pytest.raises(InfrastructureError, match="3 bytes were sent, 2 are stored"):
        publish(store, {"a.bin": b"abc"})
    monkeypatch.undo()
    assert store.find("preview", RECIPE.key) is None
    assert list(store._list("artifacts")) == []


def test_upload_of_other_content_is_noticed(s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_lab(s3_server, tmp_path)
    send = store._client.fput_object

    def damage(bucket: str, name: str, path: str, **options: Any) -> None:
        damaged = tmp_path / "damaged"
        damaged.write_bytes(Path(path).read_bytes().replace(b"b", b"x"))
        send(bucket, name, str(damaged), **options)

    monkeypatch.setattr(store._client, "fput_object", damage)
    with pytest.raises(InfrastructureError, match=r"a\..*SHA-256 of what is stored"):
        publish(store, {"a.bin": b"abc"})
    assert store.find("preview", RECIPE.key) is None
    assert list(store._list("artifacts")) == []


def test_link_expires(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path)
    publish(store, {"clip.mp4": b"abc"})
    link = store.link("preview", RECIPE.key, "clip.mp4", expires=timedelta(seconds=1))
    time.sleep(2.5)
    with pytest.raises(HTTPError, match="403"):
        urlopen(link, timeout=30)


def test_link_can_make_a_browser_keep_the_file(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path)
    publish(store, {"clip.mp4": b"abc"})
    link = store.link("preview", RECIPE.key, "clip.mp4", expires=timedelta(minutes=1), save_as="fox.mp4")
    with urlopen(link, timeout=30) as response:
        assert response.read() == b"abc"
        assert response.headers["Content-Disposition"] == 'attachment; filename="fox.mp4"'
    with pytest.raises(InputError, match="payload name"):
        store.link("preview", RECIPE.key, "clip.mp4", expires=timedelta(minutes=1), save_as='x"; a="b.mp4')


@pytest.mark.parametrize("region", [None, "us-east-1"])
def test_link_leads_to_the_public_endpoint_which_signing_it_does_not_ask(
    s3_server: Any, tmp_path: Path, region: str | None
) -> None:
    port = s3_server.endpoint.rpartition(":")[2]
    public = f"http://localhost:{port}"
    store = open_lab(s3_server, tmp_path, public_endpoint=public, region=region)
    publish(store, {"clip.mp4": b"abc"})
    link = store.link("preview", RECIPE.key, "clip.mp4", expires=timedelta(minutes=1))
    assert (store.link_origin, link.startswith(f"{public}/{s3_server.bucket}/")) == (public, True)
    with urlopen(link, timeout=30) as response:
        assert response.read() == b"abc"
    away = open_lab(s3_server, tmp_path, prefix=store._prefix, public_endpoint="https://clips.invalid", region=region)
    link = away.link("preview", RECIPE.key, "clip.mp4", expires=timedelta(minutes=1))
    assert link.startswith("https://clips.invalid/")
    assert open_lab(s3_server, tmp_path).link_origin is None


@pytest.mark.parametrize("expires", [timedelta(0), timedelta(days=8)])
def test_link_for_a_time_that_no_server_grants_is_refused(s3_server: Any, tmp_path: Path, expires: timedelta) -> None:
    store = open_lab(s3_server, tmp_path)
    publish(store, {"clip.mp4": b"abc"})
    with pytest.raises(InputError, match="one second to 7 days"):
        store.link("preview", RECIPE.key, "clip.mp4", expires=expires)


def test_delivered_clip_has_the_type_that_players_expect(s3_server: Any, tmp_path: Path) -> None:
    store = open_lab(s3_server, tmp_path)
    made = publish(store, {"clip.mp4": b"abc"})
    name = f"{store._prefix}artifacts/preview/{made.key[:2]}/{made.key}/{made.payloads['clip.mp4'].file}"
    assert s3_server.client().stat_object(s3_server.bucket, name).content_type == "video/mp4"


def begin_upload(server: Any, store: S3Store, name: str) -> str:
    """An upload in parts whose process dies after the first part; its id."""
    client, name = server.client(), store._prefix + name
    upload_id: str = client._create_multipart_upload(server.bucket, name, {})
    client._upload_part(server.bucket, name, b"x" * 5 * 2**20, None, upload_id, 1)
    return upload_id


def uploads_of(server: Any, store: S3Store) -> set[str]:
    return {upload.upload_id for upload in begun_uploads(server.client(), server.bucket, store._prefix)}


def test_sweep_aborts_uploads_that_were_begun_and_abandoned(s3_server: Any, tmp_path: Path) -> None:
    store, neighbour = open_lab(s3_server, tmp_path), open_lab(s3_server, tmp_path)
    name = f"artifacts/preview/{RECIPE.key[:2]}/{RECIPE.key}/clip.a0123456789abcdef.mp4"
    abandoned, foreign = begin_upload(s3_server, store, name), begin_upload(s3_server, neighbour, name)
    assert store.sweep(older_than_hours=1) == []
    assert store.sweep(older_than_hours=-1 / 60, dry_run=True) == [name]
    assert uploads_of(s3_server, store) == {abandoned}
    assert store.sweep(older_than_hours=-1 / 60) == [name]
    assert uploads_of(s3_server, store) == set()
    assert uploads_of(s3_server, neighbour) == {foreign}
    assert store.find("preview", publish(store, {"clip.mp4": b"abc"}).key) is not None


def test_upload_that_ended_meanwhile_is_no_error_to_abort(s3_server: Any, tmp_path: Path) -> None:
    store, client = open_lab(s3_server, tmp_path), s3_server.client()
    begin_upload(s3_server, store, "artifacts/a.bin")
    (upload,) = begun_uploads(client, s3_server.bucket, store._prefix)
    abort_upload(client, s3_server.bucket, upload)
    abort_upload(client, s3_server.bucket, upload)
    assert uploads_of(s3_server, store) == set()
