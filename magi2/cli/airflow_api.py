"""Airflow's REST API, as commands ask it: whatever comes back is an answer, or an error in one line."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from magi2.config.settings import Settings
from magi2.errors import MAX_QUOTE, ConfigError, InfrastructureError, InputError, Magi2Error, cut

SLOWEST_ANSWER_S = 30.0
"""For a connection, for the next piece of an answer, and for all of it once it has begun."""
MAX_ANSWER_BYTES = 2**20
_MAY_PASS = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}
_DENIED = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}


def start_run(settings: Settings, dag_id: str, conf: Mapping[str, object]) -> str:
    """Start a run of a DAG on the Airflow of MAGI2_AIRFLOW_URL; its id.

    Raises: as `AirflowApi.of` does, InputError for a run that Airflow refuses.
    """
    api = AirflowApi.of(settings)
    body = {"logical_date": None, "conf": dict(conf)}
    try:
        return api.text(api.ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", body), "dag_run_id")
    except InfrastructureError as error:
        error.hint = "the run may have been started all the same: look in Airflow before you ask again"
        raise


class AirflowApi:
    """An Airflow at an address, which may hold a password and is told without it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token: str | None = None
        try:
            parts = urlsplit(url)
            self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        except ValueError as error:
            raise ConfigError("MAGI2_AIRFLOW_URL is no address", hint="for example http://127.0.0.1:8080") from error

    @classmethod
    def of(cls, settings: Settings) -> AirflowApi:
        """The Airflow of MAGI2_AIRFLOW_URL, asked as MAGI2_AIRFLOW_USER from now on.

        Raises: ConfigError for an address or a login that Airflow does not take, InfrastructureError when it is away,
        busy, or something else answers in its place.
        """
        if settings.airflow_url is None:
            raise ConfigError("MAGI2_AIRFLOW_URL is not set", hint="for example http://127.0.0.1:8080")
        api = cls(settings.airflow_url)
        if settings.airflow_user:
            credentials = {"username": settings.airflow_user, "password": settings.airflow_password or ""}
            content = api.ask("POST", "/auth/token", credentials)
        else:
            content = api.ask("GET", "/auth/token")  # works where every visitor is an admin, as in the demo
        token = api.text(content, "access_token")
        if not (token.isascii() and token.isprintable()):
            raise InfrastructureError(f"Airflow at {api.place}: gives an access_token that is none")
        api._token = token
        return api

    def text(self, content: Mapping[str, Any], name: str) -> str:
        """A text of an answer. Raises InfrastructureError when it has none of this name."""
        value = content.get(name)
        if not isinstance(value, str) or not value:
            raise InfrastructureError(f"Airflow at {self.place}: answers without {name}")
        return value

    def find(self, path: str) -> dict[str, Any] | None:
        """The JSON object at a path, None when there is nothing. Raises as `ask` does."""
        try:
            return self.ask("GET", path)
        except _AbsentError:
            return None

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The JSON object that Airflow answers.

        Raises: ConfigError without the right to it, InputError for what Airflow refuses, InfrastructureError when it is
        away, busy, or something else answers in its place.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with (
                httpx.Client(base_url=self._url, timeout=SLOWEST_ANSWER_S) as client,
                client.stream(method, path, json=body, params=params, headers=headers) as answer,
            ):
                content = self._read(answer)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            message = f"MAGI2_AIRFLOW_URL {self.place}: {_line(str(error))}"
            raise ConfigError(message, hint="for example http://127.0.0.1:8080") from error
        except httpx.HTTPError as error:
            message = f"Airflow at {self.place}: {type(error).__name__}: {_line(str(error))}"
            raise InfrastructureError(message) from error
        if answer.status_code not in (httpx.codes.OK, httpx.codes.CREATED):
            raise self._refusal(answer.status_code, content)
        return self._object(content)

    def _read(self, answer: httpx.Response) -> bytes:
        content, began = b"", time.monotonic()
        for block in answer.iter_bytes():
            content += block
            if len(content) > MAX_ANSWER_BYTES or time.monotonic() - began > SLOWEST_ANSWER_S:
                raise InfrastructureError(f"Airflow at {self.place}: its answer comes too slowly or has no end")
        return content

    def _object(self, content: bytes) -> dict[str, Any]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            what = f"answers with what is no JSON, as a proxy does: {_line(content.decode(errors='replace'))!r}"
            raise InfrastructureError(f"Airflow at {self.place}: {what}") from error
        if not isinstance(found, dict):
            raise InfrastructureError(f"Airflow at {self.place}: answers with a {type(found).__name__}, not an object")
        return found

    def _refusal(self, status: int, content: bytes) -> Magi2Error:
        said = _line(content.decode(errors="replace"))
        if status in _DENIED and self._token is None:
            hint = "set MAGI2_AIRFLOW_USER and MAGI2_AIRFLOW_PASSWORD"
            return ConfigError(f"Airflow at {self.place} gives no token ({status})", hint=hint)
        if status in _MAY_PASS or not 400 <= status < 500:
            return InfrastructureError(f"Airflow at {self.place}: {status}: {said}")
        kind = _AbsentError if status == httpx.codes.NOT_FOUND else InputError
        return kind(f"Airflow at {self.place} refused the request ({status}): {said}")


class _AbsentError(InputError):
    """There is nothing at the path."""


def _line(text: str) -> str:
    return cut(" ".join(text.split()), MAX_QUOTE)
