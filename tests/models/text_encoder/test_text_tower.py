"""What is built and read from a text encoder folder, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

from magi2.errors import CheckpointError
from magi2.models.checkpoint import SafetensorsFolder
from magi2.models.text_encoder.encoder import load_text_encoder
from magi2.models.text_encoder.tower import (
    LINEAR_ATTENTION,
    PREFIX,
    build_tower,
    expected_tensors,
    load_tower,
    parse_config,
    read_config,
)


class CountingSource(SafetensorsFolder):
    """Counts how often each tensor is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: Counter[str] = Counter()

    def read(self, name: str) -> Tensor:
        self.reads[name] += 1
        return super().read(name)


def change_shard(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrite the folder's second shard and its index."""
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    shard = sorted(set(index["weight_map"].values()))[1]
    tensors = load_file(folder / shard)
    change(tensors)
    save_file(tensors, folder / shard)
    kept = {name: file for name, file in index["weight_map"].items() if file != shard}
    index_path.write_text(json.dumps({"weight_map": kept | dict.fromkeys(tensors, shard)}))


@pytest.fixture
def folder(tiny_text_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_text_folder, tmp_path / "text_encoder"))


def test_full_size_names_and_shapes_are_the_published_ones(golden_text: Path) -> None:
    published = json.loads((golden_text / "full_parameter_list.json").read_text())
    config = {"model_type": "qwen3_5_text", **published["assumed"]}
    shapes = expected_tensors(config)
    layers = ("embed_tokens.", "layers.0.", "layers.3.")
    shown = {name: shape for name, shape in shapes.items() if name.removeprefix(PREFIX).startswith(layers)}
    listed = {
        PREFIX + name: tuple(slot["shape"]) for name, slot in published["tensors"].items() if name != "norm.weight"
    }
    assert shown == listed
    assert {int(name.removeprefix(PREFIX).split(".")[1]) for name in shapes if ".layers." in name} == set(range(62))
    full = build_tower(parse_config(config), num_layers=64)
    final_norm = config["hidden_size"]
    assert sum(slot.numel() for slot in full.parameters()) + final_norm == published["text_tower_elements"]


def test_only_layers_that_run_are_built_and_read_once(golden_text: Path) -> None:
    folder = golden_text / "tiny_text_encoder"
    source, config = CountingSource(folder), read_config(folder)
    tower, report = load_tower(parse_config(config), source, device="cpu", dtype=torch.bfloat16)
    assert len(tower.get_submodule("layers")) == 6  # type: ignore[arg-type]
    assert source.reads == Counter(expected_tensors(config).keys())
    assert report.loaded == len(source.reads)
    assert set(report.skipped) == set(source.names()) - source.reads.keys()


def test_linear_attention_is_the_librarys_own_whatever_else_is_installed() -> None:
    for name in LINEAR_ATTENTION:
        function = getattr(modeling_qwen3_5, name)
        assert function.__code__.co_filename == modeling_qwen3_5.__file__


def test_skipped_tensors_are_reported_by_kind(golden_text: Path) -> None:
    skipped = load_text_encoder(golden_text / "tiny_text_encoder").load_report.skipped
    unread = ("model.visual.", "lm_head.", "mtp.", *(PREFIX + part for part in ("layers.6.", "layers.7.", "norm.")))
    assert all(name.startswith(unread) for name in skipped)
    assert all(any(name.startswith(part) for name in skipped) for part in unread)


def test_nothing_stays_on_meta_and_rotary_frequencies_are_fp32(tiny_text_folder: Path, device: torch.device) -> None:
    tower = load_text_encoder(tiny_text_folder, device=device).tower
    tensors = [*tower.parameters(), *tower.buffers()]
    assert {tensor.device.type for tensor in tensors} == {device.type}
    frequencies = tower.get_buffer("rotary_emb.inv_freq").cpu()
    torch.testing.assert_close(frequencies, 1e7 ** (-torch.arange(4) / 4))
    assert frequencies.dtype == torch.float32


def test_loading_leaves_the_global_random_state_alone(tiny_text_folder: Path) -> None:
    before = torch.get_rng_state()
    load_text_encoder(tiny_text_folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_text_config_is_read_too(folder: Path) -> None:
    whole = load_text_encoder(folder).encode("a red fox").embeds
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config["text_config"]))
    assert torch.equal(load_text_encoder(folder).encode("a red fox").embeds, whole)


def test_layers_that_never_run_may_be_absent(folder: Path) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if ".layers.5." in name or "visual" in name]:
            del tensors[name]

    change_shard(folder, drop)
    assert load_text_encoder(folder).encode("fox").embeds.isfinite().all()


def rename_all(folder: Path, rename: Callable[[str], str]) -> None:
    """Give the tensors of a folder other names."""
    index_path = folder / "model.safetensors.index.json"
    weight_map = json.loads(index_path.read_text())["weight_map"]
    for shard in set(weight_map.values()):
        save_file({rename(name): tensor for name, tensor in load_file(folder / shard).items()}, folder / shard)
    index_path.write_text(json.dumps({"weight_map": {rename(name): file for name, file in weight_map.items()}}))


@pytest.mark.parametrize("prefix", ["", "model.", "language_model."])
def test_an_encoder_saved_again_under_other_prefixes_loads_alike(prefix: str, folder: Path) -> None:
    wanted = load_text_encoder(folder).encode("a red fox").embeds
    rename_all(folder, lambda name: name.replace(PREFIX, prefix).replace("model.visual.", "visual."))
    assert torch.equal(load_text_encoder(folder).encode("a red fox").embeds, wanted)


@pytest.mark.parametrize("prefix", ["", "model.", "language_model."])
def test_a_tensor_under_two_prefixes_is_refused(prefix: str, folder: Path) -> None:
    name = prefix + "layers.3.self_attn.q_proj.weight"
    change_shard(folder, lambda tensors: tensors.__setitem__(name, torch.zeros(2)))
    with pytest.raises(CheckpointError, match=rf"00002-of-00002.*{name}"):
        load_text_encoder(folder)


@pytest.mark.parametrize("name", [PREFIX + "layers.6.extra.weight", PREFIX + "layers.1.mlp.bias", "encoder.weight"])
def test_unexpected_tensor_is_named_with_its_file(name: str, folder: Path) -> None:
    change_shard(folder, lambda tensors: tensors.__setitem__(name, torch.zeros(2)))
    with pytest.raises(CheckpointError, match=rf"00002-of-00002.*{name}"):
        load_text_encoder(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    change_shard(folder, lambda tensors: tensors.pop(PREFIX + "layers.3.self_attn.q_proj.weight"))
    with pytest.raises(CheckpointError, match=r"layers\.3\.self_attn\.q_proj\.weight"):
        load_text_encoder(folder)


def test_wrong_shape_is_named_with_its_file(folder: Path) -> None:
    name = PREFIX + "layers.3.self_attn.q_proj.weight"
    change_shard(folder, lambda tensors: tensors.__setitem__(name, torch.zeros(2, 2)))
    with pytest.raises(CheckpointError, match=rf"00002-of-00002.*{name}"):
        load_text_encoder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}, "2 layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_wrong_architecture_is_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_text_encoder(folder)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_missing_or_broken_config_is_named(content: str | None, folder: Path) -> None:
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_text_encoder(folder)
