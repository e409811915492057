"""Captions, manifests, documents and headers of weights: whatever a disk gives back is read, or refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magi2.artifacts import Manifest, ManifestDraft, Payload, Recipe, TensorSpec
from magi2.artifacts.seal import seal_json
from magi2.artifacts.tensors import open_sealed, read_specs
from magi2.checkpoints.fit import fitting_profile
from magi2.checkpoints.layout import CheckpointFolder
from magi2.errors import CheckpointError, CorruptedArtifactError, EnhancementError
from magi2.models.checkpoint import INDEX_NAME, SINGLE_NAME, SafetensorsFolder
from magi2.prompts.caption import Caption
from magi2.prompts.decode import decode_lenient, decode_strict
from tests.fuzz.bounds import bounded
from tests.render_helpers import CONFIGS

SPECS = {"video": TensorSpec("float32", (16, 2))}
DRAFT = ManifestDraft(Recipe("preview", 1, {"steps": 8}, seed=7), timings={"load": 0.25}, report={"size": [2, 4]})
MANIFEST = DRAFT.complete(
    {"latents.safetensors": Payload("latents.a0.safetensors", 10, "ab" * 32, SPECS)}, datetime(2026, 3, 4, tzinfo=UTC)
)
TENSOR = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HEADER = {"video": TENSOR, "__metadata__": {"metadata": "{}"}}
WEIGHTS = {"pre_adapter.text_embedder.weight": TENSOR, "block.layers.3.a": {**TENSOR, "data_offsets": [16, 32]}}
CAPTION = Caption("A cat", {"global_layer": {}}, findings=("a",), usage={"tokens": 3})
REPLY = {"global_layer": {"context": "a street"}, "dynamic_layer": {"timeline_segments": []}}
WORDS = (
    "video",
    "F32",
    "BF16",
    "shape",
    "data_offsets",
    "dtype",
    "__metadata__",
    "sha256",
    "key",
    "payloads",
    "2026-03-04",
)
DEEP = b"[" * 100_000
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -1, 10**400])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every member of a JSON value, at any depth."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, member in members for found in ((*path, key), *places(member, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, value: dict[str, Any]) -> Any:
    """A JSON value of which up to three members are others, or gone."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(0, 3))):
        found = places(value)
        if not found:
            break
        *parents, last = draw(st.sampled_from(found))
        holder = value
        for key in parents:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = draw(VALUES)
        else:
            del holder[last]
    return value


def written(value: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """JSON like `value`, or anything at all."""
    return st.one_of(
        changed(value).map(lambda some: json.dumps(some).encode()),
        VALUES.map(lambda some: json.dumps(some).encode()),
        st.binary(max_size=60),
        st.integers(1, 200_000).map(lambda depth: b"[" * depth),
        st.integers(1, 50_000).map(lambda depth: b'{"a":' * depth),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    for name in ("preview", "refiner", "text_encoder"):
        (root / name).mkdir()
    return root


@settings(deadline=None)
@given(content=written(json.loads(MANIFEST.to_bytes())), resealed=st.booleans())
def test_a_manifest_is_the_one_that_was_written_or_refused(content: bytes, resealed: bool) -> None:
    if resealed and content.startswith(b"{"):
        content = _resealed(content)
    with bounded(), suppress(CorruptedArtifactError):
        assert isinstance(Manifest.from_bytes(content), Manifest)


def _resealed(content: bytes) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    value.pop("sha256", None)
    return seal_json((json.dumps(value, indent=1) + "\n").encode(), str(value.get("key")))


@settings(deadline=None)
@example(content=DEEP)
@given(content=written(json.loads(CAPTION.to_json())) | written(REPLY))
def test_a_caption_is_one_or_refused(content: bytes) -> None:
    with bounded():
        with suppress(CorruptedArtifactError):
            assert isinstance(Caption.from_json(content), Caption)
        reply = content.decode(errors="replace")
        for decode in (decode_strict, decode_lenient):
            with suppress(EnhancementError):
                decode(reply, "t2v")


@st.composite
def weights(draw: st.DrawFn) -> bytes:
    """A safetensors file whose header is nearly right, or whose length lies."""
    header = draw(written(HEADER) | written(WEIGHTS))
    length = draw(st.sampled_from([len(header), len(header), len(header) + 1, 0, 2**40, 2**64 - 1]))
    return (
        length.to_bytes(8, "little")
        + header
        + draw(st.sampled_from([bytes(16), bytes(16), bytes(32), b"", bytes(1_000)]))
    )


@settings(deadline=None)
@given(content=weights() | st.binary(max_size=40))
def test_a_file_of_tensors_is_read_or_refused(content: bytes, folder: Path) -> None:
    path = folder / "refiner" / SINGLE_NAME
    path.write_bytes(content)
    with bounded():
        for read in (lambda: read_specs(path), lambda: open_sealed(content, "snapshot")):
            with suppress(CorruptedArtifactError):
                read()
        with suppress(CheckpointError):
            source = SafetensorsFolder(path.parent)
            for name in source.names():
                source.shape(name)
                source.read(name)


INDEX = {"weight_map": {"pre_adapter.text_embedder.weight": SINGLE_NAME, "block.layers.3.a": "other.safetensors"}}


@settings(deadline=None)
@example(content=bytes(8), index=DEEP, config=DEEP)
@example(content=len(DEEP).to_bytes(8, "little") + DEEP + bytes(16), index=b"", config=b"[1]")
@given(content=weights(), index=written(INDEX), config=written({"text_config": {"hidden_size": 8}}))
def test_a_folder_of_weights_fits_a_profile_or_none(content: bytes, index: bytes, config: bytes, folder: Path) -> None:
    (folder / "preview" / SINGLE_NAME).write_bytes(content)
    (folder / "preview" / INDEX_NAME).write_bytes(index)
    (folder / "text_encoder" / "config.json").write_bytes(config)
    with bounded():
        fitting_profile(CheckpointFolder(folder), CONFIGS)
        with suppress(CheckpointError):
            SafetensorsFolder(folder / "preview")
