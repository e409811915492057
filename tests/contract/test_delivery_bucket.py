"""A prefix of a bucket as a target, on a real server."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from magi2.config.settings import Settings
from magi2.delivery.targets import Targets
from magi2.errors import ConfigError, InfrastructureError
from tests.real_servers import S3Server


def targets(server: S3Server, *, secret_key: str | None = None, bucket: str | None = None) -> Targets:
    address = f"s3://{bucket or server.bucket}/delivered/?endpoint={server.endpoint}&region=us-east-1"
    secret = f'{{"own": {{"access_key": "{server.access_key}", "secret_key": "{secret_key or server.secret_key}"}}}}'
    where = f'{{"client": {{"url": "{address}", "secret": "own"}}}}'
    return Targets.of(Settings(store="/nonexistent", delivery_targets=where, delivery_secrets=secret))


def test_an_object_is_put_once_and_never_replaced(s3_server: S3Server, tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    source.write_bytes(b"a clip")
    place = targets(s3_server).open("client")
    assert place.digest("monday/a.mp4") is None
    assert place.put(source, "monday/a.mp4")
    source.write_bytes(b"another")
    assert not place.put(source, "monday/a.mp4")
    assert place.digest("monday/a.mp4") == hashlib.sha256(b"a clip").hexdigest()
    found = s3_server.client().stat_object(s3_server.bucket, "delivered/monday/a.mp4")
    assert found.content_type == "video/mp4" and found.size == 6


def test_its_own_credentials_are_used(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    with pytest.raises((ConfigError, InfrastructureError)) as caught:
        targets(s3_server, secret_key="wrong-secret").open("client").digest("a.mp4")
    assert "wrong-secret" not in str(caught.value)
