"""What determines an artifact, written down so that equal inputs give equal keys on every machine."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from magi2.errors import InputError
from magi2.types import MAX_SEED

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

STAGE_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class Recipe:
    """Everything that determines one artifact, and nothing else: no order, shard, host, time or tool version.

    `version` is the stage's numerics version, raised when its code gives other bits. `config` holds only the fields
    that matter to the stage. `checkpoints` maps a name to its fingerprint, `external` a name to the SHA-256 of what
    came from outside (prompt text, image bytes, template, caption), `inputs` a name to another artifact's key.

    The values are copied in canonical form, so a change to the caller's mapping never reaches the recipe. Two recipes
    are equal when their keys are. Raises InputError naming the field that cannot be part of a key.
    """

    stage: str
    version: int
    config: Mapping[str, JSON] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    external: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if type(self.version) is not int or self.version < 1:
            raise InputError(f"recipe.version: {self.version!r}, expected an integer from 1")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed <= MAX_SEED):
            raise InputError(f"recipe.seed: {self.seed!r}, expected none or an integer from 0 to {MAX_SEED}")
        for name in ("checkpoints", "external", "inputs"):
            _check_digests(getattr(self, name), f"recipe.{name}")
        for item in fields(self):
            object.__setattr__(self, item.name, canonical(getattr(self, item.name), f"recipe.{item.name}"))

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, made of plain JSON values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def canonical_json(self) -> str:
        """The one JSON text of this recipe: sorted keys, no white space, numbers as `canonical` writes them."""
        return _json_text(self.to_dict())  # which is canonical since the recipe was made

    @cached_property
    def key(self) -> str:
        """SHA-256 hex of the canonical JSON: the artifact's name."""
        return sha256_text(self.canonical_json())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Settled(dict[str, Any]):
    """A mapping in canonical form that nobody changes any more: many recipes share it, where others are copied."""

    @classmethod
    def of(cls, value: Mapping[str, JSON], place: str) -> Settled:
        """Of a mapping. Raises: as `canonical` does."""
        return cls(canonical(value, place))


def canonical(value: object, place: str) -> Any:
    """A deep copy of `value` in the one form that its JSON text may have.

    A whole float becomes an integer (5.0 and 5 are one value, as a YAML author means them; -0.0 is 0), other floats
    keep the shortest text that reads back equal. Booleans stay booleans. Tuples become lists.
    Raises InputError naming the place for a non-finite number, a key that is no string, or any other type.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{place}: {value!r} is not a finite number")
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, str):
        return _plain_text(value, place)
    if isinstance(value, Settled):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(name, place): canonical(item, f"{place}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item, f"{place}[{position}]") for position, item in enumerate(value)]
    raise InputError(f"{place}: {type(value).__name__} has no canonical JSON form")


def canonical_json(value: object, place: str = "value") -> str:
    """`value` as JSON text with sorted keys, no white space and characters beyond ASCII kept as they are."""
    return _json_text(canonical(value, place))


def _json_text(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_text(text: str) -> str:
    """SHA-256 hex of the text in UTF-8, as it stands: nothing is trimmed or normalised."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 hex of a file's bytes, read in pieces. Threads that hash different files run in parallel."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_digest(value: object) -> bool:
    """Whether `value` is a SHA-256 in lower-case hex."""
    return isinstance(value, str) and DIGEST_PATTERN.fullmatch(value) is not None


def check_stage(stage: str) -> str:
    """`stage` as a plain string; raises InputError when it is no stage name (it becomes a folder's name)."""
    if not isinstance(stage, str) or STAGE_PATTERN.fullmatch(stage) is None:
        raise InputError(f"stage name {stage!r}: expected lower-case letters, digits and _, at most 32")
    return _plain_text(stage, "stage")


def _check_digests(values: Mapping[str, str], place: str) -> None:
    for name, digest in values.items():
        if not is_digest(digest):
            raise InputError(f"{place}.{name}: {digest!r} is not a SHA-256 in lower-case hex")


def _plain_key(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise InputError(f"{place}: key {name!r} is a {type(name).__name__}, expected a string")
    return _plain_text(name, place)


def _plain_text(text: str, place: str) -> str:
    try:
        return text.encode().decode()  # also turns a string enum into the string it stands for
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: text is not valid Unicode: {error.reason} at {error.start}") from error
