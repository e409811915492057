"""What a worker tells its launcher: one JSON object a line. Clips appear by id; no prompt and no secret ever does."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from magi2.errors import MAX_QUOTE, ContractError

logger = logging.getLogger(__name__)

VERSION = 1
MAX_LINE_BYTES = 64 * 1024

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClipId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class _Strict:
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Hello(_Strict):
    """The first word of every rank."""

    rank: Count
    pid: Count


@dataclass(frozen=True)
class Joined(_Strict):
    """This rank has met all others."""


@dataclass(frozen=True)
class StageStarted(_Strict):
    stage: str
    clips: Count


@dataclass(frozen=True)
class Loading(_Strict):
    """Weights are being read: bytes that the process has read, or taken from the page cache, since its start."""

    bytes_read: Count


@dataclass(frozen=True)
class ModelsLoaded(_Strict):
    seconds: Seconds


@dataclass(frozen=True)
class Step(_Strict):
    """A clip's denoising has come to step `done` of `total`."""

    clip_id: ClipId
    done: Count
    total: Count


@dataclass(frozen=True)
class Resumed(_Strict):
    """A clip's denoising goes on after step `done` of `total`, from a snapshot."""

    clip_id: ClipId
    done: Count
    total: Count


@dataclass(frozen=True)
class Waiting(_Strict):
    """This rank has nothing to do until rank 0 says what."""


@dataclass(frozen=True)
class StoreAway(_Strict):
    """The store does not answer, for so long now, and is waited for."""

    seconds: Seconds
    reason: str


@dataclass(frozen=True)
class StoreBack(_Strict):
    """The store, which was away for so long, answers again."""

    seconds: Seconds


@dataclass(frozen=True)
class ClipFinished(_Strict):
    """What became of one clip. Memory is the device's peak, accelerator seconds count every rank's.

    `measures` are those of a delivered clip.
    """

    clip_id: ClipId
    state: Literal["made", "reused", "failed"]
    key: str | None
    seconds: Seconds
    flags: tuple[str, ...] = ()
    error_code: str | None = None
    error: str | None = None
    peak_memory_bytes: Count = 0
    accelerator_seconds: Seconds = 0.0
    measures: dict[str, Any] | None = None


@dataclass(frozen=True)
class Heartbeat(_Strict):
    """The process lives; it says nothing about progress."""


@dataclass(frozen=True)
class Failure(_Strict):
    """The run as a whole failed. `code` is that of a class in `magi2.errors`.

    `clip_id` is that of a clip which the group did not survive and which may not be tried again by the next one.
    """

    code: str
    message: str
    clip_id: ClipId | None = None


@dataclass(frozen=True)
class Finished(_Strict):
    """All is done and stored; the process is about to exit."""


Event: TypeAlias = (
    Hello
    | Joined
    | StageStarted
    | Loading
    | ModelsLoaded
    | Step
    | Resumed
    | Waiting
    | StoreAway
    | StoreBack
    | ClipFinished
    | Heartbeat
    | Failure
    | Finished
)

_TYPES: dict[str, type[Event]] = {
    "hello": Hello,
    "joined": Joined,
    "stage_started": StageStarted,
    "loading": Loading,
    "models_loaded": ModelsLoaded,
    "step": Step,
    "resumed": Resumed,
    "waiting": Waiting,
    "store_away": StoreAway,
    "store_back": StoreBack,
    "clip_finished": ClipFinished,
    "heartbeat": Heartbeat,
    "failure": Failure,
    "finished": Finished,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_ADAPTERS: dict[str, TypeAdapter[Event]] = {name: TypeAdapter(kind) for name, kind in _TYPES.items()}


def to_line(event: Event) -> bytes:
    """The event as one line of JSON with its end of line."""
    content = {"v": VERSION, "kind": _NAMES[type(event)], **asdict(event)}
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Event | None:
    """The event of one line; None for a kind of event that this version does not know, which is logged.

    Raises: ContractError when the line is no event, has another version, or a field that is missing, unknown or of
    the wrong type. The line itself is not quoted: it may be anything.
    """
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"event stream: {len(line)} bytes are not JSON") from error
    if not isinstance(content, dict) or content.pop("v", None) != VERSION:
        raise ContractError(f"event stream: not an event of version {VERSION}")
    kind = content.pop("kind", None)
    adapter = _ADAPTERS.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        logger.warning("event stream: ignored an event of an unknown kind %.40r", kind)
        return None
    try:
        return adapter.validate_json(json.dumps(content))
    except ValidationError as error:
        places = ", ".join(".".join(map(str, problem["loc"])) or "value" for problem in error.errors())
        raise ContractError(f"event stream: {kind}: bad {places[:MAX_QUOTE]}") from error
