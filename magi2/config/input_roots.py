"""What MAGI2_INPUT_ROOTS says: folders and prefixes of buckets, separated by colons.

A prefix is `s3://bucket/prefix/`, with `?endpoint=http://host:port` where it is not AWS, `region=` if need be, and the
name of its credentials: `secret=` of MAGI2_DELIVERY_SECRETS or `connection=` of Airflow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from magi2.errors import ConfigError
from magi2.inputs.objects import SCHEME, ObjectAddress, check_key
from magi2.inputs.refusals import UnreadableError
from magi2.inputs.text import quoted, shown

_PORT = r":(?=\d+(?:[&:]|$))"
_ENTRY = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*://[^?:]*(?:\?(?:[^:\[]|\[[0-9A-Fa-f:.]*\]|:(?=//)|{_PORT})*)?"  # an address
    r"|[^:]+"  # a folder
)
_HINT = f"give a folder or {SCHEME}bucket/prefix/"
_NAMES = ("secret", "connection")


@dataclass(frozen=True)
class InputPrefix:
    """A prefix with its server's address, as `s3_place` reads it, and the name of its credentials, if any."""

    url: str
    secret: str | None = None
    connection: str | None = None

    def __str__(self) -> str:
        return self.url.partition("?")[0]


def parse_input_roots(variable: str, text: str) -> tuple[Path | InputPrefix, ...]:
    """The entries in order. Raises ConfigError for an address that is no prefix."""
    entries = _ENTRY.findall(text)
    return tuple(_prefix(variable, each) if "://" in each else Path(each).expanduser().absolute() for each in entries)


def _prefix(variable: str, entry: str) -> InputPrefix:
    address, _, query = entry.partition("?")
    place = f"environment: {variable}: {shown(address.rpartition('@')[2])}"
    if not address.startswith(SCHEME):
        raise ConfigError(f"{place} is an address of no known kind", hint=_HINT)
    found = ObjectAddress.of(address)
    if not found.bucket or "@" in found.bucket:
        raise ConfigError(f"{place} names no bucket alone", hint=_HINT)
    if "/" not in address.removeprefix(SCHEME) or not address.endswith("/"):
        raise ConfigError(f"{place} does not end at a /", hint=f"{_HINT}: what begins alike is not meant with it")
    try:
        if found.key:
            check_key(found.key.removesuffix("/"))
    except UnreadableError as error:
        raise ConfigError(f"{place}: {error}") from None
    options = dict(parse_qsl(query, keep_blank_values=True))
    secret, connection = (options.pop(name, None) or None for name in _NAMES)
    if secret and connection:
        raise ConfigError(f"{place} has both a secret and a connection", hint="one of them says who reads there")
    if unknown := sorted(options.keys() - {"endpoint", "region"}):
        known = ", ".join(("endpoint", "region", *_NAMES))
        raise ConfigError(f"{place} has the unknown option {quoted(unknown[0])}", hint=f"there are {known}")
    return InputPrefix(f"{address}?{urlencode(options)}" if options else address, secret, connection)
