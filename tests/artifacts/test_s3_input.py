"""Objects of a batch over HTTP: read within limits, and a server's troubles told without its address."""

from __future__ import annotations

from pathlib import Path

import pytest
from minio.credentials import StaticProvider

from magi2.artifacts import s3 as s3_module
from magi2.artifacts.address import S3Place
from magi2.artifacts.s3_input import S3Input
from magi2.errors import AwayError, InfrastructureError, Magi2Error, SourceError
from magi2.inputs.refusals import AbsentError, UnreadableError
from tests.artifacts.s3_answers import HTML, PAGE, SLOW, XML, server

PLAIN = "text/plain"
SECRET = "hunter2-of-the-key"


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_RETRIES", s3_module._RETRIES.new(total=1, backoff_factor=0))


def read(endpoint: str, limit: int = 10, *, key: str = "prompts/a.txt") -> bytes:
    place = S3Place("studio", "/prompts/", endpoint, "us-east-1", None)
    return S3Input(place, StaticProvider("access", SECRET)).read(key, limit)


def refusal(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{SECRET} at 10.0.0.7</Message></Error>".encode()


def test_content_of_the_limit_is_read_in_one_request() -> None:
    with server(200, PLAIN, b"0123456789") as (endpoint, asked):
        assert read(endpoint) == b"0123456789"
    assert asked == ["GET"]


@pytest.mark.parametrize("sent", [0, 11])
def test_what_is_larger_is_refused_by_the_announced_size_before_it_comes(sent: int) -> None:
    with (
        server(200, PLAIN, b"0" * 2**20, sent=sent) as (endpoint, _),
        pytest.raises(UnreadableError, match="has 1048576 bytes, at most 10"),
    ):
        read(endpoint)


@pytest.mark.parametrize(
    ("status", "kind", "body", "error", "said"),
    [
        (404, XML, refusal("NoSuchKey"), AbsentError, "no such object"),
        (403, XML, refusal("AccessDenied"), UnreadableError, "denied"),
        (403, XML, refusal("InvalidObjectState"), UnreadableError, "is archived"),
        (403, XML, refusal("SignatureDoesNotMatch"), SourceError, "MAGI2_INPUT_ROOTS"),
        (403, XML, refusal("InvalidAccessKeyId"), SourceError, "MAGI2_INPUT_ROOTS"),
        (404, XML, refusal("NoSuchBucket"), SourceError, "no such bucket"),
        (503, XML, SLOW, AwayError, "away or busy"),
        (507, XML, refusal("Strange"), InfrastructureError, "Strange"),
        (200, HTML, PAGE[:10], AwayError, "away or busy"),
        (403, HTML, PAGE, AwayError, "away or busy"),
    ],
)
def test_each_refusal_has_its_class_and_tells_neither_server_nor_secret(
    status: int, kind: str, body: bytes, error: type[Magi2Error], said: str
) -> None:
    with server(status, kind, body) as (endpoint, _), pytest.raises(Magi2Error) as caught:
        read(endpoint)
    text = str(caught.value)
    assert type(caught.value) is error and said in text
    assert SECRET not in text and "127.0.0.1" not in text and "10.0.0.7" not in text


def test_answer_that_is_cut_off_is_no_content() -> None:
    with server(200, PLAIN, b"0123456789", sent=4) as (endpoint, _), pytest.raises(AwayError):
        read(endpoint)


def test_server_that_is_away_is_worth_waiting_for_and_not_named(tmp_path: Path) -> None:
    with pytest.raises(AwayError, match=r"s3://studio/prompts/a\.txt") as caught:
        read("http://127.0.0.1:9")
    assert "127.0.0.1" not in str(caught.value)
