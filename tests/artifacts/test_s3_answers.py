"""What answers of something else than an S3 server, or of one in trouble, become: one line, worth a retry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from minio.credentials import StaticProvider

from magi2.artifacts import s3 as s3_module
from magi2.artifacts.s3 import S3Store
from magi2.errors import ConfigError, InfrastructureError
from tests.artifacts.s3_answers import HTML, PAGE, SLOW, XML, server
from tests.small_disk import files_of_at_most

FULL = b"<Error><Code>XMinioStorageFull</Code><Message>no space</Message></Error>"


@pytest.fixture
def open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], S3Store]:
    monkeypatch.setattr(s3_module, "_RETRIES", s3_module._RETRIES.new(total=1, backoff_factor=0))

    def opened(endpoint: str, **changes: str) -> S3Store:
        values = {"bucket": "clips", "region": "us-east-1", **changes}
        return S3Store(endpoint=endpoint, credentials=StaticProvider("a", "secret"), scratch=tmp_path, **values)

    return opened


ACTIONS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get_document("report.json"),
    "put": lambda store: store.put_document("report.json", b"{}"),
    "list": lambda store: list(store.keys("preview")),
    "download": lambda store: store._download("report.json"),
    "test": lambda store: store.self_test(),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (429, XML, SLOW),
        (429, HTML, PAGE),
        (500, HTML, PAGE),
        (502, HTML, PAGE),
        (503, XML, SLOW),
        (507, XML, FULL),
        (507, HTML, b""),
        (404, HTML, PAGE),
        (403, HTML, PAGE),
        (400, XML, b"<Error><Co"),
        (400, XML, b"\xff\xfe\x00"),
        (418, XML, b"<teapot/>"),
    ],
)
def test_refusals_of_all_kinds_are_one_line_and_worth_a_retry(
    open_store: Callable[[str], S3Store], action: str, status: int, kind: str, body: bytes
) -> None:
    place = r"s3://clips/.* at http://127"
    with server(status, kind, body) as (endpoint, _), pytest.raises(InfrastructureError, match=place) as caught:
        ACTIONS[action](open_store(endpoint))
    text = str(caught.value)
    assert "\n" not in text and len(text) < 700 and "hunter2" not in text and "AWS_ACCESS_KEY_ID" not in text


@pytest.mark.parametrize(
    "body",
    [b"", PAGE, b"<html/>", b"<ListBucketRes", b"\xff\xfe", b"<a><Contents><Size>many</Size></Contents></a>"],
)
def test_a_list_that_is_none_is_one_line_and_worth_a_retry(open_store: Callable[[str], S3Store], body: bytes) -> None:
    with server(200, XML, body) as (endpoint, _):
        try:
            assert list(open_store(endpoint).keys("preview")) == []
        except InfrastructureError as error:
            assert "none of an S3 server's" in str(error) and "\n" not in str(error)


def test_a_server_that_asks_for_an_hour_gets_half_a_minute() -> None:
    assert s3_module._RETRIES.retry_after_max == s3_module.LONGEST_WAIT_S == 30


@pytest.mark.parametrize(("bucket", "prefix"), [("Not_A_Bucket!", ""), ("clips", "a/../b")])
def test_a_name_that_no_server_takes_is_a_setting_at_fault_and_asks_nobody(
    open_store: Callable[..., S3Store], bucket: str, prefix: str
) -> None:
    with server(200, XML, b"") as (endpoint, asked), pytest.raises(ConfigError, match=bucket):
        open_store(endpoint, bucket=bucket, prefix=prefix).get_document("report.json")
    assert asked == []


def test_a_full_scratch_disk_is_named_and_worth_a_retry(open_store: Callable[[str], S3Store], tmp_path: Path) -> None:
    with server(200, "video/mp4", b"x" * 20_000) as (endpoint, _):
        store = open_store(endpoint)
        with files_of_at_most(1000), pytest.raises(InfrastructureError, match=f"{tmp_path}.*File too large"):
            store._download("clip.mp4")


def test_a_server_that_sends_more_than_the_part_is_not_read_to_its_end(open_store: Callable[[str], S3Store]) -> None:
    more = pytest.raises(InfrastructureError, match="ignores that a range is asked for")
    with server(200, "video/mp4", bytes(5000)) as (endpoint, _), more:
        open_store(endpoint)._read_part("clip.mp4", 0, 1000)


def test_a_part_that_is_broken_off_is_one_line_and_worth_a_retry(open_store: Callable[[str], S3Store]) -> None:
    short = pytest.raises(InfrastructureError, match=r"clip.mp4 at http.*400 bytes read")
    with server(206, "video/mp4", bytes(1000), sent=400) as (endpoint, _), short as caught:
        open_store(endpoint)._read_part("clip.mp4", 0, 1000)
    assert "\n" not in str(caught.value)
