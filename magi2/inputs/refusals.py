"""Why a file that a batch names is not read."""

from __future__ import annotations

from magi2.errors import InputError


class UnreadableError(InputError):
    """A file that is not read. The message is the reason alone, without the path and without a word of the file."""


class AbsentError(UnreadableError):
    """There is no such file in the folders."""
