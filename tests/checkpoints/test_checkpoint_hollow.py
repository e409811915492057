"""The hollow folder: published weights by name, shape and size, which every check takes and nobody renders from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from safetensors import safe_open

from magi2.artifacts.local import LocalStore
from magi2.batches.intake import plan_location
from magi2.batches.plan import BatchOptions
from magi2.checkpoints import hollow
from magi2.checkpoints.hollow import make_hollow, size_on_disk
from magi2.checkpoints.layout import COMPONENTS, CheckpointFolder
from magi2.checkpoints.published import SHARDS, TensorSpec, published_tensors
from magi2.checkpoints.verify import verify
from magi2.checkpoints.whole import require_whole
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import CheckpointError
from magi2.stages.prepare import prepare
from tests.render_helpers import CONFIGS, make_clip, stored_files
from tests.small_disk import files_of_at_most

PROFILE = load_profile("1080p", CONFIGS)
Table = Mapping[str, Mapping[str, TensorSpec]]
PUBLISHED_BYTES = {"preview": 228_107_858_176, "refiner": 13_484_611_648, "video_vae": 4 * 704_688_668}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hollow") / "weights"
    assert make_hollow(root, PROFILE.architectures) == list(COMPONENTS)
    return root


@pytest.fixture(scope="module")
def tensors() -> Table:
    return published_tensors(PROFILE.architectures)


def test_it_seems_as_long_as_the_published_folder_and_takes_two_megabytes(folder: Path) -> None:
    seeming, taken = size_on_disk(folder)
    assert 276 * 2**30 < seeming < 277 * 2**30
    assert taken < 2_000_000


def test_the_table_has_the_published_sizes(tensors: Table) -> None:
    assert {name: len(specs) for name, specs in tensors.items()} == {
        **{"text_encoder": 850, "preview": 1371, "refiner": 281},
        **{"video_vae": 196, "turbo_vae": 80, "audio_vae": 365},
    }
    found = {name: sum(spec.size_bytes for spec in tensors[name].values()) for name in PUBLISHED_BYTES}
    assert found == PUBLISHED_BYTES


def test_every_loader_finds_each_tensor_of_its_network_and_none_besides(folder: Path, tensors: Table) -> None:
    reports = {report.component: report for report in verify(folder, PROFILE.architectures)}
    assert [report.problem for report in reports.values()] == [None] * len(COMPONENTS)
    assert all(report.hollow and not report.cast for report in reports.values())
    for component in ("preview", "refiner", "video_vae", "turbo_vae"):
        assert reports[component].tensors == len(tensors[component]) and reports[component].skipped == ()
    assert reports["text_encoder"].tensors == 824 and len(reports["text_encoder"].skipped) == 26
    assert all(name.startswith("pretransform.model.encoder.") for name in reports["audio_vae"].skipped)


def test_files_are_cut_as_published_and_none_is_far_longer_than_the_others(folder: Path) -> None:
    for component, count in SHARDS.items():
        files = CheckpointFolder(folder).files(component)
        sizes = [path.stat().st_size for path in files if path.suffix == ".safetensors"]
        assert len(sizes) == count and max(sizes) < 1.5 * sum(sizes) / count


def test_headers_say_what_the_table_says(folder: Path, tensors: Table) -> None:
    for component, specs in tensors.items():
        found = dict(_headers(CheckpointFolder(folder).folder(component)))
        assert found == {name: (spec.shape, str(spec.dtype)) for name, spec in specs.items()} or not found
        assert bool(found) == (component not in ("video_vae", "turbo_vae"))


def _headers(folder: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    dtypes = {"BF16": "torch.bfloat16", "F32": "torch.float32"}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  which is no mapping
                part = file.get_slice(name)
                yield name, (tuple(part.get_shape()), dtypes[part.get_dtype()])


def test_a_batch_is_planned_on_it_without_reading_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_text(json.dumps({"prompt": "a heron takes off"}) + "\n")
    store = LocalStore(tmp_path / "store")
    settings = Settings(ckpt_root=folder, store=store.url)
    plan = plan_location(
        str(tmp_path / "batch.jsonl"), settings=settings, store=store, profile="1080p", options=BatchOptions()
    )
    assert [len(shard.clips) for shard in plan.shards] == [1] and plan.refused == ()
    require_whole(PROFILE, (), CheckpointFolder(folder))
    assert not list(folder.rglob(".magi2-fingerprint.json"))


@pytest.mark.slow
def test_nothing_is_rendered_from_it(folder: Path, tmp_path: Path) -> None:
    settings = Settings(ckpt_root=folder, store=str(tmp_path / "store"), device="no-such-device")
    with pytest.raises(CheckpointError, match="text_encoder is hollow"):  # before the device is opened
        prepare(PROFILE, settings, [make_clip(PROFILE)])
    assert not (tmp_path / "store").exists()


def test_a_hollow_file_is_known_among_real_ones_without_the_mark_of_the_folder(folder: Path, tmp_path: Path) -> None:
    for component in COMPONENTS.values():
        (tmp_path / component.folder).symlink_to(folder / component.folder)
    weights = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match="preview is hollow"):
        weights.require_filled(["preview"])


def test_its_fingerprints_are_never_those_of_weights_of_the_same_size(folder: Path, tiny_checkpoint: Path) -> None:
    hollow_ones, real = CheckpointFolder(folder), CheckpointFolder(tiny_checkpoint)
    assert len({weights[name] for weights in (hollow_ones, real) for name in COMPONENTS}) == 2 * len(COMPONENTS)
    real.require_filled(COMPONENTS)


def test_a_complete_one_is_left_as_it_is_and_an_interrupted_one_is_completed(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "weights"
    make_hollow(root, PROFILE.architectures)
    assert _sizes(root) == _sizes(folder)
    lost = [root / "preview/model-00007-of-00056.safetensors", root / "preview/model.safetensors.index.json"]
    for path in (*lost, root / "vae/Wan2.2_VAE.pth"):
        path.unlink()
    kept = root / "refiner/model-00001-of-00003.safetensors"
    before = kept.stat()
    make_hollow(root, PROFILE.architectures)
    assert _sizes(root) == _sizes(folder)
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def _sizes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def test_a_folder_or_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match=f"{name} is no empty folder"):
            make_hollow(tmp_path / name, PROFILE.architectures)
    assert stored_files(tmp_path).keys() == {"mine/model.safetensors", "file"}


def test_a_file_system_without_holes_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hollow.os, "truncate", lambda path, size: Path(path).write_bytes(bytes(size)))
    with pytest.raises(CheckpointError, match="keeps no sparse files: 67,108,864 bytes without data take"):
        make_hollow(tmp_path / "weights", PROFILE.architectures)
    assert os.listdir(tmp_path / "weights") == []


def test_a_limit_on_the_length_of_files_is_told_with_the_length(tmp_path: Path) -> None:
    with files_of_at_most(2**32), pytest.raises(CheckpointError, match=r"takes no file of 5,\d{3},\d{3},\d{3} bytes"):
        make_hollow(tmp_path / "weights", PROFILE.architectures)
    assert os.listdir(tmp_path / "weights") == []
