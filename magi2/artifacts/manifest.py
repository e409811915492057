"""The manifest: what an artifact is, how it was made and what its payloads must look like. It is written last."""

from __future__ import annotations

import json
import math
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from magi2 import __version__
from magi2.artifacts.damage import what_came
from magi2.artifacts.recipe import JSON, Recipe, canonical, is_digest
from magi2.artifacts.seal import SEAL, check_seal, seal_json
from magi2.artifacts.tensors import TensorSpec
from magi2.errors import CorruptedArtifactError, InputError

FORMAT = 2
"""Those of format 1 carry no digest of their own."""
PAYLOAD_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_MAX_NAME = 128  # characters; with the attempt's token far below the 255 bytes of a file name

MADE_BY = "made_by"
"""Entry of a manifest's report: the versions of the libraries and programs that made the artifact, by name."""

T = TypeVar("T")


@dataclass(frozen=True)
class Payload:
    """One stored file: its name in the artifact's folder, what it must hold, and its tensors if it holds tensors."""

    file: str
    size_bytes: int
    sha256: str
    tensors: Mapping[str, TensorSpec] | None = None


@dataclass(frozen=True)
class ManifestDraft:
    """What a stage says about the artifact it is about to publish; the store adds payloads and time.

    `timings` are seconds by name. `flags` name every fallback that was taken. `report` is for people.
    """

    recipe: Recipe
    device: str = "cpu"
    timings: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    report: Mapping[str, JSON] = field(default_factory=dict)
    code_version: str = __version__
    host: str = field(default_factory=socket.gethostname)

    def complete(self, payloads: Mapping[str, Payload], created_at: datetime) -> Manifest:
        """The manifest of this draft. Raises InputError when a timing or the report is no JSON."""
        return Manifest(
            recipe=self.recipe,
            payloads=payloads,
            created_at=created_at,
            code_version=self.code_version,
            device=self.device,
            host=self.host,
            timings=self.timings,
            flags=self.flags,
            report=self.report,
        )


@dataclass(frozen=True)
class Manifest:
    """The record that makes an artifact exist. `created_at` is in UTC, `timings` are seconds by name.

    One that was read and is not `is_sealed` carries no digest: what it promises may have changed since.
    """

    recipe: Recipe
    payloads: Mapping[str, Payload]
    created_at: datetime
    code_version: str
    device: str
    host: str
    timings: Mapping[str, float]
    flags: tuple[str, ...]
    report: Mapping[str, JSON]
    is_sealed: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        # The same normal form that reading gives, so that a written manifest equals the one read back.
        object.__setattr__(self, "created_at", self.created_at.astimezone(UTC))
        object.__setattr__(self, "timings", {name: _seconds(value, name) for name, value in self.timings.items()})
        object.__setattr__(self, "flags", tuple(self.flags))
        object.__setattr__(self, "report", canonical(self.report, "report"))

    @property
    def key(self) -> str:
        """The artifact's name: the key of its recipe."""
        return self.recipe.key

    @property
    def stage(self) -> str:
        return self.recipe.stage

    @property
    def size_bytes(self) -> int:
        """What the payloads take together."""
        return sum(payload.size_bytes for payload in self.payloads.values())

    def to_bytes(self) -> bytes:
        """The manifest as JSON; equal manifests give equal bytes."""
        content = {
            "format": FORMAT,
            "key": self.key,
            "recipe": self.recipe.to_dict(),
            "payloads": {name: _payload_to_dict(payload) for name, payload in self.payloads.items()},
            "created_at": self.created_at.isoformat(timespec="microseconds"),
            "code_version": self.code_version,
            "device": self.device,
            "host": self.host,
            "timings": self.timings,
            "flags": list(self.flags),
            "report": self.report,
        }
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n"
        return seal_json(text.encode(), self.key)

    @classmethod
    def from_bytes(cls, data: bytes, *, place: str = "manifest") -> Manifest:
        """Read what `to_bytes` wrote, strictly.

        Raises: CorruptedArtifactError naming `place` and the field when anything is missing, unknown, of the wrong
        type, or when the key is not the one of the recipe; also when any byte is another than was written.
        """
        top = _Reader(_parse(data, place), place)
        if not 1 <= (version := top.take("format", int)) <= FORMAT:
            raise CorruptedArtifactError(
                f"{place}: format {version}, this code reads 1 to {FORMAT}", hint="update magi2"
            )
        is_sealed = version > 1 or top.has(SEAL)
        if is_sealed:
            top.take(SEAL, str)
        recipe = _recipe_from(top.take("recipe", dict), f"{place}: recipe")
        if (key := top.take("key", str)) != recipe.key:
            raise CorruptedArtifactError(f"{place}: key {key!r} is not the recipe's, which is {recipe.key}")
        values: dict[str, Any] = {
            "payloads": _mapping(top.take("payloads", dict), _payload_from, f"{place}: payloads"),
            "created_at": _time_from(top.take("created_at", str), f"{place}: created_at"),
            "timings": _mapping(top.take("timings", dict), _expect(float), f"{place}: timings"),
            "flags": tuple(_expect(str)(flag, f"{place}: flags") for flag in top.take("flags", list)),
            "report": top.take("report", dict),
            **{name: top.take(name, str) for name in ("code_version", "device", "host")},
        }
        top.finish()
        try:
            for name in values["payloads"]:
                check_payload_name(name)
            manifest = cls(recipe=recipe, is_sealed=is_sealed, **values)
        except (InputError, OverflowError) as error:
            raise CorruptedArtifactError(f"{place}: {error}") from error
        if is_sealed:
            check_seal(data, key, place=place)
        return manifest


class _Reader:
    """Takes the fields of a JSON object one by one; what stays is unknown."""

    def __init__(self, content: Any, place: str) -> None:
        self.place = place
        self._rest: dict[str, Any] = dict(_expect(dict)(content, place))

    def has(self, name: str) -> bool:
        return name in self._rest

    def take(self, name: str, kind: type[T]) -> T:
        if name not in self._rest:
            raise CorruptedArtifactError(f"{self.place}: field {name!r} is missing")
        return _expect(kind)(self._rest.pop(name), f"{self.place}: {name}")

    def take_or_none(self, name: str, kind: type[T]) -> T | None:
        if name in self._rest and self._rest[name] is None:
            return self._rest.pop(name)  # type: ignore[no-any-return]
        return self.take(name, kind)

    def finish(self) -> None:
        if self._rest:
            raise CorruptedArtifactError(f"{self.place}: unknown field {min(self._rest)!r}")


def check_payload_name(name: str) -> str:
    """`name`; raises InputError when it could not be a file name inside the artifact's folder."""
    if not isinstance(name, str) or PAYLOAD_PATTERN.fullmatch(name) is None or len(name) > _MAX_NAME:
        raise InputError(f"payload name {name!r}: expected letters, digits, _ - and inner dots, at most {_MAX_NAME}")
    return name


def _parse(data: bytes, place: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(data.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptedArtifactError(f"{place}: not a manifest: {error}; it has {what_came(data)}") from error


def _expect(kind: type[T]) -> Callable[[Any, str], T]:
    def check(value: Any, place: str) -> T:
        if type(value) is not kind:
            raise CorruptedArtifactError(f"{place}: {str(value)[:80]!r} is no {kind.__name__}")
        return value

    return check


def _mapping(content: dict[str, Any], read: Callable[[Any, str], T], place: str) -> dict[str, T]:
    return {name: read(value, f"{place}.{name}") for name, value in content.items()}


def _recipe_from(content: dict[str, Any], place: str) -> Recipe:
    reader = _Reader(content, place)
    values: dict[str, Any] = {
        "stage": reader.take("stage", str),
        "version": reader.take("version", int),
        "seed": reader.take_or_none("seed", int),
        **{name: reader.take(name, dict) for name in ("config", "checkpoints", "external", "inputs")},
    }
    reader.finish()
    try:
        return Recipe(**values)
    except InputError as error:
        raise CorruptedArtifactError(f"{place}: {error}") from error


def _payload_to_dict(payload: Payload) -> dict[str, Any]:
    tensors = payload.tensors
    specs = {name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in (tensors or {}).items()}
    return {
        "file": payload.file,
        "size_bytes": payload.size_bytes,
        "sha256": payload.sha256,
        "tensors": None if tensors is None else specs,
    }


def _payload_from(content: Any, place: str) -> Payload:
    reader = _Reader(content, place)
    payload = Payload(
        file=reader.take("file", str),
        size_bytes=reader.take("size_bytes", int),
        sha256=reader.take("sha256", str),
        tensors=(
            None
            if (specs := reader.take_or_none("tensors", dict)) is None
            else _mapping(specs, _spec_from, f"{place}.tensors")
        ),
    )
    reader.finish()
    if PAYLOAD_PATTERN.fullmatch(payload.file) is None:
        raise CorruptedArtifactError(f"{place}: file {payload.file!r} is not a plain file name")
    if payload.size_bytes < 0 or not is_digest(payload.sha256):
        raise CorruptedArtifactError(f"{place}: size {payload.size_bytes} or digest {payload.sha256!r} is impossible")
    return payload


def _spec_from(content: Any, place: str) -> TensorSpec:
    reader = _Reader(content, place)
    dtype, shape = reader.take("dtype", str), reader.take("shape", list)
    reader.finish()
    if any(type(size) is not int or size < 0 for size in shape):
        raise CorruptedArtifactError(f"{place}: shape {shape} is impossible")
    return TensorSpec(dtype, tuple(shape))


def _time_from(text: str, place: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptedArtifactError(f"{place}: {error}") from error
    if moment.tzinfo is None:
        raise CorruptedArtifactError(f"{place}: {text!r} has no time zone")
    return moment


def _seconds(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"timings.{name}: {value} s is not a finite time")
    return float(value)
