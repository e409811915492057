"""The tiny refiner of the golden vectors, and helpers to compare with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import load_refiner
from magi2.models.refiner.model import RefinerModel
from magi2.models.refiner.windows import WindowGrid


@pytest.fixture(scope="session")
def refiner_golden(golden: Path) -> Path:
    return golden / "refiner"


@pytest.fixture(scope="session")
def tiny_refiner_config(refiner_golden: Path) -> RefinerConfig:
    published = json.loads((refiner_golden / "tiny_config.json").read_text())
    arch, data = published["magi2_refiner_arch_config"], published["magi2_refiner_data_proxy_config"]["attn_config"]
    names = ["num_layers", "hidden_size", "head_dim", "num_query_groups"]
    names += ["video_in_channels", "audio_in_channels", "text_in_channels"]
    return RefinerConfig(
        **{name: arch[name] for name in names},
        mm_layers=tuple(arch["mm_layers"]),
        window_block=(data["block_t_size"], data["block_size"], data["block_size"]),
        window_radius=tuple(data["window"][f"block_{axis}_radius"] for axis in "thw"),
    )


@pytest.fixture(scope="session")
def load_tiny_refiner(
    refiner_golden: Path, tiny_refiner_config: RefinerConfig, device: torch.device
) -> Callable[[torch.dtype], RefinerModel]:
    def load(compute_dtype: torch.dtype) -> RefinerModel:
        folder = refiner_golden / "tiny_checkpoint"
        return load_refiner(folder, tiny_refiner_config, device=device, compute_dtype=compute_dtype)

    return load


@pytest.fixture(scope="session")
def load_refiner_golden(refiner_golden: Path, device: torch.device) -> Callable[[str], dict[str, Tensor]]:
    def load(name: str) -> dict[str, Tensor]:
        return {key: value.to(device) for key, value in load_file(refiner_golden / f"{name}.safetensors").items()}

    return load


@pytest.fixture(scope="session")
def relative_error() -> Callable[[Tensor, Tensor], float]:
    def error(got: Tensor, wanted: Tensor) -> float:
        got, wanted = got.double().cpu(), wanted.double().cpu()
        assert got.shape == wanted.shape
        return float((got - wanted).norm() / wanted.norm())

    return error


@pytest.fixture(scope="session")
def seen_tokens() -> Callable[[WindowGrid, int], Tensor]:
    """Dense mask [S, S] of a grid and its tail, spelled out from the groups that attention works by."""

    def seen(grid: WindowGrid, tail: int) -> Tensor:
        total = grid.num_tokens + tail
        mask = torch.zeros(total, total, dtype=torch.bool, device=grid.order.device)
        for group in grid.groups:
            keys = group.key_tokens(0, len(group.query_blocks))
            mask[group.query_tokens[:, :, None], keys[:, None]] = True
        mask[:, grid.num_tokens :] = True
        mask[grid.num_tokens :] = True
        return mask

    return seen


@pytest.fixture(scope="session")
def mask_of_ranges() -> Callable[[dict[str, Any], int], Tensor]:
    """Dense mask [S, S] of the (query range, key range) pairs in a golden file."""

    def mask_of(tensors: dict[str, Any], total: int) -> Tensor:
        mask = torch.zeros(total, total, dtype=torch.bool)
        pairs = zip(tensors["q_ranges"].tolist(), tensors["k_ranges"].tolist(), strict=True)
        for (q_start, q_stop), (k_start, k_stop) in pairs:
            mask[q_start:q_stop, k_start:k_stop] = True
        return mask

    return mask_of
