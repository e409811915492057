"""Objects of buckets that a batch names, and the prefixes of buckets from which any are read.

An address in a batch is somebody else's words. It says which object, never where a server is or who asks it: that is
the deployment's. So that nobody can write one object's address in two ways, what is no plain key is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from magi2.inputs.limits import MAX_KEY_BYTES
from magi2.inputs.refusals import UnreadableError
from magi2.inputs.text import quoted

SCHEME = "s3://"
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class ObjectAddress:
    """`s3://bucket/key` as somebody wrote it: nothing is said of it yet. That of a folder has a key ending in `/`."""

    bucket: str
    key: str

    @classmethod
    def of(cls, text: str) -> ObjectAddress:
        """The address that begins with `SCHEME`."""
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        return cls(bucket, key)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    @property
    def stem(self) -> str:
        """The object's name without its ending."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The ending of the object's name, with its dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectAddress:
        """The folder that the object is in."""
        return ObjectAddress(self.bucket, self.key[: self.key.rfind("/") + 1])


Location: TypeAlias = Path | ObjectAddress
"""Where a file is: a path of this host, or an object."""


@dataclass(frozen=True)
class ObjectPrefix:
    """The objects of a bucket whose keys begin with `prefix`, which is empty or ends in `/`.

    `read` gives the content of a key of at most so many bytes. It raises UnreadableError for what is there and not
    given, AbsentError, InfrastructureError for a server that fails, SourceError for one that refuses the deployment.
    """

    bucket: str
    prefix: str
    read: Callable[[str, int], bytes]

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"

    def holds(self, address: ObjectAddress) -> bool:
        """Whether an object or a folder lies below the prefix."""
        return address.bucket == self.bucket and address.key.startswith(self.prefix)


def is_address(text: str) -> bool:
    """Whether a text is the address of an object."""
    return text.startswith(SCHEME)


def location_in(folder: Location | None, text: str) -> Location:
    """Where a row's `text` leads; what is no address and no absolute path starts at `folder`.

    Raises: UnreadableError for a relative path where there is no folder.
    """
    if is_address(text):
        return ObjectAddress.of(text)
    if isinstance(folder, Path):
        return folder / text
    if Path(text).is_absolute():
        return Path(text)
    if folder is None:
        raise UnreadableError(
            "is a relative path, which these rows have no folder for",
            hint="give an address s3://bucket/prefix/name or an absolute path, or name the folder of the images",
        )
    return ObjectAddress(folder.bucket, folder.key + text)


def check_key(key: str) -> None:
    """Raises UnreadableError, naming what is wrong, for what is not the one plain way to write an object's key."""
    if "?" in key:
        raise UnreadableError("has a question mark: neither versions nor options are taken")
    for part in key.split("/"):
        if part in ("", ".", ".."):
            reason = f"has the part {quoted(part)}" if part else "has an empty part"
            raise UnreadableError(f"{reason} between its slashes", hint="write the object's key as the bucket has it")
    if escape := _ESCAPE.search(key):
        raise UnreadableError(f"has the escape {escape[0]}", hint="write the character itself")
    if "\\" in key:
        raise UnreadableError("has a backslash", hint="folders are parted by / here")
    if not key.isprintable():
        raise UnreadableError("holds a character that does not show")
    if len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        raise UnreadableError(f"has more than {MAX_KEY_BYTES} bytes")
