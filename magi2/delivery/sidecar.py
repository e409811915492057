"""The sidecar: a JSON file beside each delivered clip that says how the clip was made, and by which it is made again.

Its schema is published as docs/sidecar.schema.json. Whoever reads one reads somebody else's words: see `read_sidecar`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from magi2.config.strict import validate
from magi2.errors import InputError
from magi2.inputs.files import InputRoots
from magi2.inputs.limits import (
    MAX_IMAGES,
    MAX_PROMPT_CHARS,
    MAX_SIDECAR_BYTES,
    MAX_TEXT_BYTES,
)
from magi2.inputs.text import load_json, quoted, shown
from magi2.types import MAX_SEED, StageName

SIDECAR_VERSION = 1
SIDECAR_SUFFIX = ".json"

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Moment = Annotated[AwareDatetime, PlainSerializer(lambda moment: moment.isoformat(), when_used="json")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageRecord(_Part):
    """A reference image: `<Figure number>` of the prompt, and the SHA-256 of its file."""

    figure: int = Field(ge=1)
    sha256: Sha256


class FileRecord(_Part):
    """The bytes of a file."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)


class ProfileRecord(_Part):
    """The profile by name and digest, and its resolved settings.

    They are without what is no part of the clip (where it was delivered) and without what a reader must not take from
    a file: paths, and the name of a watermark, which `marking` has.
    """

    name: str
    digest: Sha256
    settings: dict[str, Any]


class StageRecord(_Part):
    """What a stage made of the clip: the artifact's key, when and in how many seconds it was made, and by what.

    `program` is this program's version, `made_by` those of libraries, kernels and ffmpeg. Device, layout of ranks and
    host are in full sidecars alone.
    """

    key: Sha256
    made_at: _Moment
    seconds: float = Field(ge=0)
    program: str
    made_by: dict[str, str] = {}
    device: str | None = None
    layout: str | None = None
    host: str | None = None


class CostRecord(_Part):
    """What making the clip took, each stage counted once, and what that costs by the deployment's price."""

    accelerator_seconds: float = Field(ge=0)
    amount: float | None = None
    currency: str | None = None


class Sidecar(_Part):
    """How a clip was made, and what was delivered. Stages that retention has taken are missing, the last never.

    `weights` are fingerprints by component. `marking` is what the file says of itself by configuration. `stored` are
    the bytes in the store, `delivered` those beside this file: others where `signed`.
    """

    version: Literal[1]
    clip_id: Sha256
    prompt: str = Field(max_length=MAX_PROMPT_CHARS)
    caption: str = Field(
        min_length=1, max_length=MAX_TEXT_BYTES, description="the text that was encoded for the prompt"
    )
    negative_prompt: str | None = Field(None, max_length=MAX_TEXT_BYTES, description="its text")
    images: tuple[ImageRecord, ...] = Field((), max_length=MAX_IMAGES)
    seed: int = Field(ge=0, le=MAX_SEED)
    profile: ProfileRecord
    weights: dict[str, Sha256]
    stages: dict[StageName, StageRecord]
    marking: dict[str, Any]
    stored: FileRecord
    delivered: FileRecord
    signed: bool
    cost: CostRecord | None = None

    def to_bytes(self) -> bytes:
        """The file's content: UTF-8, the same bytes for the same record."""
        content = self.model_dump(mode="json", exclude_none=True)
        return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def sidecar_schema() -> dict[str, Any]:
    """The JSON Schema of a sidecar, as it is published."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = Sidecar.model_json_schema()
    return {"$schema": dialect, "$id": f"magi2-sidecar-{SIDECAR_VERSION}", **schema}


def sidecar_path(clip: Path) -> Path:
    """Where the sidecar of a delivered file lies."""
    return clip.with_suffix(SIDECAR_SUFFIX)


def read_sidecar(path: Path) -> Sidecar:
    """The sidecar in a file that anybody may have written.

    It is of the published schema and within its limits. Nothing in it is acted upon here: `magi2.delivery.again` says
    what of it is. Raises: InputError naming the file and the place.
    """
    what = f"sidecar {shown(path)}"
    text = InputRoots.around(path).read_text(path, what, MAX_SIDECAR_BYTES)
    try:
        content = load_json(text)
        text.encode()
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"{what}: has half a surrogate pair") from None
    except ValueError as error:
        raise InputError(f"{what}: not JSON: {error}") from None
    if not isinstance(content, Mapping):
        raise InputError(f"{what}: not a JSON object")
    version = content.get("version")
    if type(version) is int and version > SIDECAR_VERSION:
        raise InputError(f"{what}: has version {version}, this magi2 reads {SIDECAR_VERSION}", hint="update magi2")
    if version != SIDECAR_VERSION or isinstance(version, bool):
        raise InputError(f"{what}: version is {quoted(version)}, expected {SIDECAR_VERSION}")
    return validate(Sidecar, content, place=what)
