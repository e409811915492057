"""The error tree: every failure a user can meet has a code, a retry verdict and, where one exists, a hint.

The class decides what happens next: an `InputError` is never retried, an `InfrastructureError` is retried with
back-off, a `CorruptedArtifactError` makes the artifact be computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_QUOTE = 200
"""The longest piece of a user's text that leaves the process in an error."""
MAX_PROMPT = 200
MAX_REASON = 500
_MAX_MESSAGE = 1000
_QUOTING_CODES = frozenset({"error", "input", "prompt_too_long", "image", "enhancement"})


class Magi2Error(Exception):
    """Base of all errors this project raises on purpose. `str()` is one line that a user can act on."""

    code = "error"
    retryable = False
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


class InputError(Magi2Error):
    """What the user gave cannot be rendered: prompt, image, seed, size, profile, batch file."""

    code = "input"


class ConfigError(InputError):
    """A profile, an architecture or a `MAGI2_*` setting is wrong."""

    code = "config"


class SourceError(ConfigError):
    """The deployment itself may not read where inputs are: no file of a batch is to blame."""


class IdentityError(ConfigError):
    """The store is not the one that the catalog speaks of, or too much of it is missing."""

    code = "identity"
    hint = (
        "mount or name the right store with MAGI2_STORE, or the right catalog with MAGI2_CATALOG; "
        "if these two are right: magi2 catalog rebuild --force"
    )


class PromptTooLongError(InputError):
    """The prompt has more tokens than the text encoder reads."""

    code = "prompt_too_long"
    hint = "shorten the prompt or set text.on_overflow: truncate in the profile"


class ImageError(InputError):
    """A reference image is missing, unreadable or too elongated."""

    code = "image"


class EnhancementError(Magi2Error):
    """The language model gave no usable caption."""

    code = "enhancement"


class CheckpointError(InputError):
    """Model weights are missing, unexpected, mis-shaped or unreadable."""

    code = "checkpoint"


class MediaError(Magi2Error):
    """ffmpeg failed, or its result is not the clip that was planned."""

    code = "media"


class MissingToolError(MediaError):
    """A program that the stage needs is absent or broken."""

    code = "missing_tool"


class ContractError(Magi2Error):
    """A stage got or made a tensor of the wrong shape, dtype or with non-finite values."""

    code = "contract"


class CorruptedArtifactError(Magi2Error):
    """A stored artifact does not match its manifest."""

    code = "corrupted_artifact"
    retryable = True


class InfrastructureError(Magi2Error):
    """Store, network or disk failed; the same call may succeed later."""

    code = "infrastructure"
    retryable = True


class AwayError(InfrastructureError):
    """What the work needs does not answer: a server that refuses, is silent or busy, a file system that is gone.

    Worth waiting for a while, where another fault of a disk or store is not.
    """


class RankGoneError(InfrastructureError):
    """Another rank of the group does not answer; why is for that rank to say, or for its end to show."""

    code = "rank_gone"


class GroupLostError(InfrastructureError):
    """The ranks of a group, or this process alone, cannot go on. `cause` is what happened.

    `clip_id` is that of the clip it happened to, unless another rank is simply gone.
    """

    def __init__(self, cause: Magi2Error, clip_id: str | None = None) -> None:
        super().__init__(str(cause), hint="")
        self.cause = cause
        self.clip_id = clip_id


class OutOfMemoryError(Magi2Error):
    """The accelerator (or the host) has too little memory for this clip."""

    code = "out_of_memory"


class CancelledError(Magi2Error):
    """The work was stopped from outside."""

    code = "cancelled"


class PausedError(CancelledError):
    """The work has to wait: its batch is paused, or another batch goes first."""

    code = "paused"


class BatchCancelledError(CancelledError):
    """Somebody cancelled the batch."""

    code = "batch_cancelled"


class StoppedError(CancelledError):
    """More clips of the batch failed than it allows, and its limit is one that stops."""

    code = "stopped"
    hint = "raise its failure limit and resume it"


class BudgetSpentError(Magi2Error):
    """The batch has cost as much as it may."""

    code = "budget"


def error_from_code(code: str, message: str) -> Magi2Error:
    """The error of the class whose `code` this is; a plain Magi2Error when there is none."""
    return next((kind for kind in _classes(Magi2Error) if kind.code == code), Magi2Error)(message, hint="")


def _classes(root: type[Magi2Error]) -> Iterator[type[Magi2Error]]:
    yield root
    for kind in root.__subclasses__():
        if "code" in vars(kind):  # one without a code of its own is made by its module alone
            yield from _classes(kind)


def in_one_line(error: BaseException) -> str:
    """The error's message in one line: of several the first and the last, between which compilers print sources."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else " … ".join([*lines[:1], *lines[-1:]])


def error_text(error: Magi2Error) -> str:
    """The error's message as it may leave the process: one line, cut where it could quote a prompt at length."""
    return cut(" ".join(str(error).split()), MAX_QUOTE if quotes_users(error.code) else _MAX_MESSAGE)


def quotes_users(code: str) -> bool:
    """Whether errors of this code may quote what a user or a language model wrote."""
    return code in _QUOTING_CODES


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of the text."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def reason_of(error: Magi2Error) -> str:
    """The error in one line that quotes nobody at length."""
    line = str(error).partition("\n")[0]
    return cut(line, MAX_PROMPT if quotes_users(error.code) else MAX_REASON)
