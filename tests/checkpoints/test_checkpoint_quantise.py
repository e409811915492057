"""Weights quantised before they are loaded: the same bits, the same fingerprint, and no half of a folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from magi2.checkpoints.fit import require_fit
from magi2.checkpoints.hollow import make_hollow
from magi2.checkpoints.layout import COMPONENTS, CheckpointFolder
from magi2.checkpoints.quantise import quantise_checkpoint
from magi2.checkpoints.verify import verify
from magi2.config.load import load_profile
from magi2.errors import CheckpointError, Magi2Error
from magi2.models.preview.config import Weights
from magi2.models.preview.quantised import E4M3
from magi2.models.preview.state_dict import load_preview
from tests.render_helpers import CONFIGS

TINY = load_profile("tiny", CONFIGS)
ARCHITECTURES = TINY.architectures
FORMATS: tuple[Weights, ...] = ("fp8_experts", "fp8")
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Weights, Path]:
    root = tmp_path_factory.mktemp("quantised")
    for weights in FORMATS:
        quantise_checkpoint(tiny_checkpoint, root / weights, ARCHITECTURES, weights)
    return {weights: root / weights for weights in FORMATS}


@pytest.fixture
def source(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "source")


def state(root: Path, weights: Weights) -> dict[str, Tensor]:
    found = load_preview(root / "preview", ARCHITECTURES.preview, weights=weights).state_dict()
    return {name: value.view(torch.uint8) if value.dtype == E4M3 else value for name, value in found.items()}


@pytest.mark.parametrize("weights", FORMATS)
def test_it_loads_the_bits_that_the_source_is_quantised_to(
    weights: Weights, made: dict[Weights, Path], tiny_checkpoint: Path
) -> None:
    before, after = state(tiny_checkpoint, weights), state(made[weights], weights)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    both = (CheckpointFolder(root)["preview"] for root in (tiny_checkpoint, made[weights]))
    assert len(set(both)) == 1, "recipes are the same"


def test_experts_alone_can_still_become_everything(made: dict[Weights, Path]) -> None:
    some, every = state(made["fp8_experts"], "fp8"), state(made["fp8"], "fp8")
    assert all(torch.equal(some[name], every[name]) for name in every)


@pytest.mark.parametrize("weights", FORMATS)
def test_it_verifies_as_a_whole_and_says_its_format(weights: Weights, made: dict[Weights, Path]) -> None:
    reports = {report.component: report for report in verify(made[weights], ARCHITECTURES)}
    assert [report.problem for report in reports.values()] == [None] * len(COMPONENTS)
    assert reports["preview"].weights == weights and reports["preview"].cast == ()
    assert reports["preview"].fingerprint == CheckpointFolder(made[weights])["preview"]
    assert (made[weights] / "vae").is_symlink()


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [("fp8", "fp8", True), ("fp8_experts", "fp8", True), ("fp8", "bf16", False), ("fp8", "fp8_experts", False)],
)
def test_a_plan_refuses_a_format_that_lost_more_than_its_profile_wants(
    stored: Weights, wanted: Weights, fits: bool, made: dict[Weights, Path]
) -> None:
    profile = load_profile("tiny", CONFIGS, [f"compute.weights={wanted}"])
    if fits:
        require_fit(profile, CheckpointFolder(made[stored]), CONFIGS)
        return
    with pytest.raises(CheckpointError, match=r"profile tiny: .*preview: weights are stored as fp8, compute\.weights"):
        require_fit(profile, CheckpointFolder(made[stored]), CONFIGS)


def test_an_interrupted_run_goes_on_and_is_no_checkpoint_before(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise_checkpoint(source, out, ARCHITECTURES, "fp8", on_file=stop)
    assert sorted(os.listdir(out / "preview")) == ["model-00001-of-00003.safetensors", SHARD]
    with pytest.raises(CheckpointError, match="was begun and not finished"):
        _ = CheckpointFolder(out)["preview"]
    kept = (out / "preview" / SHARD).stat()
    with pytest.raises(CheckpointError, match="has magi2_weights 'fp8', this run makes 'fp8_experts'"):
        quantise_checkpoint(source, out, ARCHITECTURES, "fp8_experts")
    quantise_checkpoint(source, out, ARCHITECTURES, "fp8", copy=True)
    assert (out / "preview" / SHARD).stat().st_mtime_ns == kept.st_mtime_ns
    assert not (out / "vae").is_symlink() and (out / "vae" / "Wan2.2_VAE.pth").is_file()
    assert CheckpointFolder(out)["preview"] == CheckpointFolder(source)["preview"]
    assert not list(out.rglob("*.partial"))


def test_a_source_that_changed_in_between_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantise_checkpoint(source, out, ARCHITECTURES, "fp8")
    file = source / "preview" / SHARD
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="has magi2_source"):
        quantise_checkpoint(source, out, ARCHITECTURES, "fp8")


def test_files_that_are_not_as_they_were_made_have_no_fingerprint(made: dict[Weights, Path], tmp_path: Path) -> None:
    out = shutil.copytree(made["fp8"], tmp_path / "out", symlinks=True)
    file = out / "preview" / SHARD
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="preview has changed since it was made"):
        _ = CheckpointFolder(out)["preview"]
    (out / "preview" / "quantised.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is no record of quantised weights"):
        _ = CheckpointFolder(out)["preview"]


def test_what_cannot_be_quantised_is_said(made: dict[Weights, Path], tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is quantised already"):
        quantise_checkpoint(made["fp8"], tmp_path / "again", ARCHITECTURES, "fp8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="mine is no empty folder"):
        quantise_checkpoint(tiny_checkpoint, tmp_path / "mine", ARCHITECTURES, "fp8")
    with pytest.raises(CheckpointError, match=r"no empty folder|this run makes"):
        quantise_checkpoint(tiny_checkpoint, tiny_checkpoint, ARCHITECTURES, "fp8")
    other = load_profile("1080p", CONFIGS).architectures
    with pytest.raises(CheckpointError, match="is --profile that of these weights"):
        quantise_checkpoint(tiny_checkpoint, tmp_path / "other", other, "fp8")


def test_every_file_says_what_it_is(made: dict[Weights, Path], tiny_checkpoint: Path) -> None:
    record = json.loads((made["fp8"] / "preview" / "quantised.json").read_text())
    assert (record["weights"], record["scales"]) == ("fp8", "channel")
    for path in (made["fp8"] / "preview").glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
        assert said["magi2_scales"] == "channel" and said["magi2_source"] == record["source"]
    sizes = [
        sum(p.stat().st_size for p in (r / "preview").glob("*.safetensors")) for r in (made["fp8"], tiny_checkpoint)
    ]
    assert sizes[0] < sizes[1]


def test_a_hollow_one_is_verified_in_its_format(tmp_path: Path) -> None:
    published = load_profile("1080p", CONFIGS).architectures
    make_hollow(tmp_path / "hollow", published, "fp8")
    (report,) = [each for each in verify(tmp_path / "hollow", published) if each.component == "preview"]
    assert report.problem is None and report.hollow and report.weights == "fp8" and not report.cast
    assert 107 < report.size_bytes / 2**30 < 109
    with pytest.raises(Magi2Error, match="hollow with other weights than bf16"):
        make_hollow(tmp_path / "hollow", published)
