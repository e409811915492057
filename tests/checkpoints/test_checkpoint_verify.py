"""Verifying a weights folder: every component through its real loader, each fault named by file and tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magi2.checkpoints.layout import COMPONENTS
from magi2.checkpoints.verify import ComponentReport, verify
from magi2.config.load import load_profile
from tests.render_helpers import CONFIGS, truncate

ARCHITECTURES = load_profile("tiny", CONFIGS).architectures
SHARD = "model-00002-of-00003.safetensors"


def reports_of(root: Path, profile: str = "tiny", *, fingerprint: bool = False) -> dict[str, ComponentReport]:
    architectures = load_profile(profile, CONFIGS).architectures
    return {report.component: report for report in verify(root, architectures, fingerprint=fingerprint)}


@pytest.fixture
def weights(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "weights")


def change_shard(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors of a shard, and its index with them."""
    before = load_file(path)
    after = dict(before)
    change(after)
    save_file(after, path)
    index = path.with_name("model.safetensors.index.json")
    if index.is_file():
        content = json.loads(index.read_text())
        content["weight_map"] = {n: f for n, f in content["weight_map"].items() if f != path.name}
        content["weight_map"] |= dict.fromkeys(after, path.name)
        index.write_text(json.dumps(content))


def change_pickle(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


def test_all_six_components_of_a_tiny_checkpoint_are_good(tiny_checkpoint: Path) -> None:
    reports = reports_of(tiny_checkpoint, fingerprint=True)
    assert list(reports) == list(COMPONENTS) and len(reports) == 6
    for report in reports.values():
        assert report.problem is None and report.tensors > 0 and report.files > 0 and report.size_bytes > 0
        assert report.fingerprint is not None and len(report.fingerprint) == 64


def test_what_nobody_reads_is_listed(tiny_checkpoint: Path) -> None:
    skipped = {name: report.skipped for name, report in reports_of(tiny_checkpoint).items()}
    assert any(name.startswith("model.visual.") for name in skipped["text_encoder"])
    assert "lm_head.weight" in skipped["text_encoder"]
    assert all(name.startswith("pretransform.model.encoder.") for name in skipped["audio_vae"])
    assert skipped["audio_vae"]
    assert skipped["preview"] == skipped["refiner"] == skipped["video_vae"] == ()


@pytest.mark.parametrize(
    ("component", "damage", "named"),
    [
        ("preview", lambda r: (r / "preview" / SHARD).unlink(), [SHARD, "missing"]),
        ("refiner", lambda r: truncate(r / "refiner" / SHARD), [SHARD, "truncated"]),
        ("text_encoder", lambda r: (r / "text_encoder/tokenizer.json").unlink(), ["tokenizer.json", "missing"]),
        ("text_encoder", lambda r: (r / "text_encoder/config.json").write_text("{"), ["config.json", "not JSON"]),
        ("turbo_vae", lambda r: (r / "turbo_vae/checkpoint.ckpt").unlink(), ["checkpoint.ckpt", "missing"]),
        ("video_vae", lambda r: truncate(r / "vae/Wan2.2_VAE.pth"), ["Wan2.2_VAE.pth", "truncated"]),
        ("audio_vae", lambda r: truncate(r / "stable-audio-open-1.0/model.safetensors"), ["model.safetensors"]),
        ("audio_vae", lambda r: shutil.rmtree(r / "stable-audio-open-1.0"), ["model_config.json", "missing"]),
        (
            "preview",
            lambda r: change_shard(r / "preview" / SHARD, lambda t: t.pop(min(t))),
            ["preview", "missing, first 'block."],
        ),
        (
            "preview",
            lambda r: change_shard(r / "preview" / SHARD, lambda t: t.update({"block.extra": torch.ones(1)})),
            [SHARD, "'block.extra'"],
        ),
        (
            "refiner",
            lambda r: change_shard(r / "refiner" / SHARD, lambda t: t.update({min(t): torch.ones(7, 7, 7)})),
            [SHARD, "shape (7, 7, 7), the model wants"],
        ),
        (
            "video_vae",
            lambda r: change_pickle(r / "vae/Wan2.2_VAE.pth", lambda t: t.pop("conv2.weight")),
            ["Wan2.2_VAE.pth", "'conv2.weight'"],
        ),
        (
            "video_vae",
            lambda r: change_pickle(r / "vae/Wan2.2_VAE.pth", lambda t: t.update({"conv2.bias": torch.ones(1)})),
            ["Wan2.2_VAE.pth: conv2.bias: shape (1,)"],
        ),
        (
            "video_vae",
            lambda r: change_pickle(r / "vae/Wan2.2_VAE.pth", lambda t: t.update({"conv1.bias": Path("x")})),
            ["Wan2.2_VAE.pth", "weights-only", "Unsupported"],
        ),
        (
            "turbo_vae",
            lambda r: change_pickle(r / "turbo_vae/checkpoint.ckpt", lambda t: t["ema_state_dict"].popitem()),
            ["checkpoint.ckpt", "missing, first"],
        ),
    ],
)
def test_a_fault_is_named_by_file_and_tensor_and_the_others_are_good(
    component: str, damage: Callable[[Path], object], named: list[str], weights: Path
) -> None:
    damage(weights)
    reports = reports_of(weights)
    problem = reports.pop(component).problem
    assert problem is not None and all(words in problem for words in named), problem
    assert "\n" not in problem
    assert [report.problem for report in reports.values()] == [None] * 5


def test_a_tensor_of_another_dtype_is_told_and_taken(weights: Path) -> None:
    assert {name: report.cast for name, report in reports_of(weights).items()} == dict.fromkeys(COMPONENTS, ())
    changed = next(iter(load_file(weights / "preview" / SHARD)))
    change_shard(weights / "preview" / SHARD, lambda t: t.update({changed: t[changed].half()}))
    report = reports_of(weights)["preview"]
    assert (report.problem, report.cast) == (None, (changed,))


def test_weights_of_another_architecture_are_refused(tiny_checkpoint: Path) -> None:
    problems = {name: report.problem for name, report in reports_of(tiny_checkpoint, "1080p").items()}
    for component in ("preview", "refiner", "video_vae"):
        assert problems[component] is not None
    for component in ("text_encoder", "turbo_vae", "audio_vae"):
        assert problems[component] is None, "these bring their own description"


def test_an_empty_folder_misses_everything(tmp_path: Path) -> None:
    assert all("is missing" in (report.problem or "") for report in reports_of(tmp_path).values())
