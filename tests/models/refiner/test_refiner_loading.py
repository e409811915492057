"""Parameters, strict loading, random initialisation and the published configuration."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from magi2.errors import CheckpointError, ConfigError
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import init_random_, load_refiner
from magi2.models.refiner.model import RefinerModel


def test_parameters_are_the_published_ones(refiner_golden):
    wanted = json.loads((refiner_golden / "full_parameter_list.json").read_text())
    with torch.device("meta"):
        state = RefinerModel(RefinerConfig()).state_dict()
    got = {
        name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in state.items()
    }
    assert got == wanted["tensors"]
    assert sum(tensor.numel() for tensor in state.values()) == wanted["num_elements"]
    assert sum(t.numel() * t.element_size() for t in state.values()) == wanted["num_bytes_in_module_dtypes"]


def test_mlp_width_is_rounded_down_to_a_multiple_of_four(tiny_refiner_config):
    assert RefinerConfig().intermediate_size == 10920
    assert tiny_refiner_config.intermediate_size == 340


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"head_dim": 100}, "multiple of 8"),
        ({"hidden_size": 4100}, "no multiple of head_dim"),
        ({"num_query_groups": 5}, "5 query groups"),
        ({"mm_layers": (0, 30)}, "mm_layers"),
        ({"mm_layers": (1, 1)}, "mm_layers"),
        ({"window_block": (8, 4, 0)}, "window_block"),
        ({"window_radius": (2, -1, 2)}, "window_radius"),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        RefinerConfig(**change)


def test_missing_tensor_is_refused(refiner_golden, tiny_refiner_config, tmp_path):
    tensors = {}
    for shard in sorted((refiner_golden / "tiny_checkpoint").glob("*.safetensors")):
        tensors |= load_file(shard)
    del tensors["pre_adapter.rope.bands"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"pre_adapter\.rope\.bands"):
        load_refiner(tmp_path, tiny_refiner_config)


def test_weights_of_another_architecture_are_refused(refiner_golden, tiny_refiner_config, tmp_path):
    folder = tmp_path / "refiner"
    shutil.copytree(refiner_golden / "tiny_checkpoint", folder)
    with pytest.raises(CheckpointError, match="does not have"):
        load_refiner(folder, dataclasses.replace(tiny_refiner_config, num_layers=4, mm_layers=(0, 1)))
    with pytest.raises(CheckpointError, match="shape"):
        load_refiner(folder, dataclasses.replace(tiny_refiner_config, mm_layers=(0, 1)))


@torch.no_grad()
def test_random_weights_give_finite_output_of_order_one(tiny_refiner_config):
    outputs = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(11)
        refiner = RefinerModel(tiny_refiner_config)
        init_random_(refiner, generator)
        context = refiner.prepare(refiner.prepare_grid((3, 5, 6)), torch.randn(1, 7, 96, generator=generator))
        outputs.append(refiner(torch.randn(1, 48, 3, 5, 6, generator=generator), context))
    assert torch.equal(*outputs)
    assert torch.isfinite(outputs[0]).all()
    assert 0.2 < float(outputs[0].std()) < 5
