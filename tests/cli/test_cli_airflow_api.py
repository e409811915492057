"""Whatever answers in Airflow's place, a command ends with one line that says so and what to do."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import pytest

from magi2.cli import airflow_api
from magi2.cli.airflow_api import start_run
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InfrastructureError, InputError, Magi2Error
from tests.cli.canned_airflow import TOKEN, answering, http

HTML = b"<html>\n<body>maintenance\n</body></html>"


def start(url: str) -> str:
    return start_run(replace(Settings(), airflow_url=url), "dag", {"only": ["a"]})


def test_run_that_airflow_starts_is_named() -> None:
    with answering([http(TOKEN, "201 Created"), http(b'{"dag_run_id": "manual__1"}')]) as url:
        assert start(url) == "manual__1"


STRANGE = {
    "html": http(HTML),
    "empty": http(b""),
    "nothing": b"",
    "no protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "cut": http(b'{"access_token": ', length=500),
    "cut json": http(b'{"access_token": '),
    "no unicode": http(b"\xff\xfe\x00"),
    "a list": http(b'["abc"]'),
    "a number": http(b"5"),
    "null": http(b"null"),
    "no field": http(b"{}"),
    "field of another type": http(b'{"access_token": {"a": 1}, "dag_run_id": 7}'),
    "token of two lines": http(json.dumps({"access_token": "a\nb", "dag_run_id": ""}).encode()),
    "token that is no ascii": http(json.dumps({"access_token": "ä", "dag_run_id": None}).encode()),
    "deep": http(b"[" * 100_000),
    "bad gateway": http(HTML, "502 Bad Gateway"),
    "unavailable": http(b"", "503 Service Unavailable"),
    "busy": http(HTML, "429 Too Many Requests"),
    "redirect": http(b"", "302 Found"),
    "no content": http(b"", "204 No Content"),
    "bad encoding": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc",
}


@pytest.mark.parametrize("asked", ["token", "run"])
@pytest.mark.parametrize("strange", STRANGE)
def test_strange_answer_is_one_line_that_names_the_place(asked: str, strange: str) -> None:
    answers = [STRANGE[strange]] if asked == "token" else [http(TOKEN), STRANGE[strange]]
    with (
        answering(answers) as url,
        pytest.raises(InfrastructureError, match=r"Airflow at http://127.0.0.1:\d+") as caught,
    ):
        start(url)
    line = str(caught.value)
    assert "\n" not in line and "secret" not in line and len(line) < 600
    assert ("may have been started all the same" in line) == (asked == "run")


@pytest.mark.parametrize(
    ("answers", "kind", "says"),
    [
        ([http(b"{}", "401 Unauthorized")], ConfigError, "MAGI2_AIRFLOW_USER"),
        ([http(HTML, "404 Not Found")], InputError, "404"),
        ([http(TOKEN), http(b'{"detail": "no such\\n DAG"}', "404 Not Found")], InputError, "no such"),
        ([http(TOKEN), http(b"{}", "403 Forbidden")], InputError, "403"),
    ],
)
def test_refusal_is_one_line_and_not_tried_again(answers: list[bytes], kind: type[Magi2Error], says: str) -> None:
    with answering(answers) as url, pytest.raises(kind, match=says) as caught:
        start(url)
    assert "\n" not in str(caught.value) and not caught.value.retryable


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://host", "http://", "http://[::1", "http://ho st", "http://\x00", "x"]
)
def test_address_that_is_none_is_a_setting_to_mend(url: str) -> None:
    with pytest.raises((ConfigError, InfrastructureError), match=r"MAGI2_AIRFLOW_URL|Airflow at") as caught:
        start(url)
    assert "\n" not in str(caught.value)


def test_nobody_there_may_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(InfrastructureError, match="ConnectError"):
        start(f"http://127.0.0.1:{port}")


def test_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "MAX_ANSWER_BYTES", 1000)
    with answering([http(b" " * 5000)]) as url, pytest.raises(InfrastructureError, match="has no end"):
        start(url)
