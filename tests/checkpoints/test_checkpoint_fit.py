"""Profiles held against weights by the headers of their files, before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.checkpoints.fit import fitting_profile, require_fit
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import CheckpointError

CONFIGS = Settings().configs
DEMO = Path(__file__).parents[2] / "examples" / "demo_checkpoint"


def write_header(path: Path, tensors: dict[str, list[int]]) -> None:
    """A safetensors file of these shapes, without its data."""
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * 64)


def write_transformer(folder: Path, *, layers: int, width: int, text: int) -> None:
    """Two shards and their index, as large models are published."""
    embedder = {"pre_adapter.text_embedder.weight": [width, text]}
    blocks = {f"block.layers.{index}.mlp.pre_norm.weight": [width] for index in range(layers)}
    write_header(folder / "a.safetensors", blocks)
    write_header(folder / "b.safetensors", embedder)
    index = dict.fromkeys(blocks, "a.safetensors") | dict.fromkeys(embedder, "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    write_transformer(tmp_path / "preview", layers=40, width=4 * 3072, text=5120)
    write_transformer(tmp_path / "refiner", layers=30, width=4096, text=5120)
    (tmp_path / "text_encoder").mkdir()
    (tmp_path / "text_encoder" / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 5120}}))
    return tmp_path


def check(profile: str, root: Path, *overrides: str) -> None:
    require_fit(load_profile(profile, CONFIGS, overrides), CheckpointFolder(root), CONFIGS)


@pytest.mark.parametrize("profile", ["1080p", "540p", "272p", "tiny", "tiny-preview"])
def test_the_demos_weights_are_named(profile: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check(profile, DEMO)
    sentence = (
        f"profile {profile} is made for other weights than {DEMO}: these weights are the demo's: take --profile demo"
    )
    assert str(caught.value) == sentence


def test_random_weights_are_named(tiny_checkpoint: Path) -> None:
    for profile in ("tiny", "tiny-preview"):
        check(profile, tiny_checkpoint)
    with pytest.raises(CheckpointError, match="these weights are random tiny ones: take --profile tiny"):
        check("demo", tiny_checkpoint)


def test_published_weights_are_named(published: Path) -> None:
    for profile in ("1080p", "540p", "272p"):
        check(profile, published)
    with pytest.raises(CheckpointError, match="these weights are the published ones: take --profile 1080p"):
        check("demo", published)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write_transformer(root / "preview", layers=39, width=4 * 3072, text=5120),
        lambda root: write_transformer(root / "preview", layers=40, width=4 * 3200, text=5120),
        lambda root: write_transformer(root / "refiner", layers=30, width=4096, text=4096),
        lambda root: (root / "text_encoder" / "config.json").write_text('{"hidden_size": 4096}'),
    ],
    ids=["layers", "width", "refiner", "encoder"],
)
def test_weights_of_nobody_are_said_to_be_so(change: Callable[[Path], object], published: Path) -> None:
    change(published)
    with pytest.raises(CheckpointError, match=r"no profile of .*configs is made for these weights|take --profile 272p"):
        check("1080p", published)


def test_the_refiner_counts_where_the_profile_has_one(published: Path) -> None:
    shutil.rmtree(published / "refiner")
    write_transformer(published / "refiner", layers=2, width=64, text=5120)
    check("540p", published)
    with pytest.raises(CheckpointError):
        check("1080p", published)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"[1, 2]  "])
def test_what_is_missing_or_unreadable_says_nothing(content: bytes, tmp_path: Path) -> None:
    check("1080p", tmp_path)
    (tmp_path / "preview").mkdir()
    (tmp_path / "preview" / "model.safetensors").write_bytes(content)
    check("1080p", tmp_path)
    assert fitting_profile(CheckpointFolder(tmp_path), CONFIGS) is None


def test_weights_that_were_exchanged_are_looked_at_again(tmp_path: Path) -> None:
    shutil.copytree(DEMO / "preview", tmp_path / "preview")
    assert fitting_profile(CheckpointFolder(tmp_path), CONFIGS) == "demo"
    write_transformer(tmp_path / "preview", layers=40, width=4 * 3072, text=5120)
    assert fitting_profile(CheckpointFolder(tmp_path), CONFIGS) == "1080p"
