"""Taking out of a report what says where it was made: paths, addresses, names of hosts, and whatever is secret."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from magi2.config.settings import Settings

_ADDRESS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"),;]+")
_PATH = re.compile(r"(?<![\w/.<-])(?:~|\.{1,2})?/(?:[^\s'\"),;:<>/]+/?)+")
_NETWORK = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]*@")
HIDDEN = "<hidden>"


class Scrubber:
    """What may leave this machine of a text. Secrets never do; the rest stays where `with_paths` asks for it."""

    def __init__(self, settings: Settings, *, with_paths: bool = False) -> None:
        self._with_paths = with_paths
        self._secrets = sorted(_secrets(settings), key=len, reverse=True)
        places = () if with_paths else _places(settings)
        self._places = sorted({place for place in places if len(place) > 1}, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text, in which what is hidden is replaced."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        text = _LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text)
        if self._with_paths:
            return text
        text = _ADDRESS.sub("<address>", text)
        for place in self._places:
            text = re.sub(rf"(?<!\w){re.escape(place)}(?!\w)", "<place>", text)
        return _NETWORK.sub("<address>", _PATH.sub("<path>", text))

    def value(self, value: Any) -> Any:
        """Every text of a JSON value, by `text`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.value(entry) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        return value


def _secrets(settings: Settings) -> Iterator[str]:
    """Settings that never show in a `repr`."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if not each.repr and isinstance(value, str) and value:
            yield value


def _places(settings: Settings) -> Iterator[str]:
    """Names by which this machine, and what it serves, are known."""
    host = socket.gethostname()
    yield from (host, host.partition(".")[0], str(Path.home()), os.getcwd())
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, Path):
            yield str(value)
    yield settings.store
