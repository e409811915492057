"""What the benchmark of FP8's errors finds at a small width."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from benchmarks.fp8_error import DATA, FORMATS, measured
from magi2.models.preview.config import PreviewConfig
from tests.models.preview.preview_goldens import tiny_config


@pytest.fixture(scope="module")
def config() -> PreviewConfig:
    return tiny_config()


@pytest.fixture(scope="module")
def rows(config: PreviewConfig) -> dict[tuple[int, str, str], dict[str, Any]]:
    found = measured(config, config.num_layers, 64, torch.device("cpu"))["layers"]
    return {(row["index"], row["data"], row["weights"]): row for row in found}


def test_every_layer_is_measured_in_every_format_with_both_kinds_of_data(
    config: PreviewConfig, rows: dict[tuple[int, str, str], dict[str, Any]]
) -> None:
    assert set(rows) == set(product(range(config.num_layers), DATA, FORMATS))


def test_a_format_moves_its_own_products_and_no_others(rows: dict[tuple[int, str, str], dict[str, Any]]) -> None:
    for (layer, data, weights), row in rows.items():
        plain = rows[layer, data, "bf16"]
        assert 0 < plain["layer"] < 0.02
        if weights == "fp8":
            assert 3 * plain["attention"] < row["attention"] < 0.2
            assert 3 * plain["mlp"] < row["mlp"] < 0.3
        elif weights == "fp8_experts":
            assert row["attention"] == plain["attention"]
            assert (row["mlp"] > plain["mlp"]) == (row["kind"] == "sparse")


def test_experts_in_fp8_alone_leave_a_layers_own_routes_alone(
    rows: dict[tuple[int, str, str], dict[str, Any]],
) -> None:
    """The router reads what comes before the experts."""
    sparse = {key: row for key, row in rows.items() if row["kind"] == "sparse"}
    assert sparse
    for (layer, data, weights), row in sparse.items():
        if weights == "fp8_experts":
            assert row["routes_flipped"] == sparse[layer, data, "bf16"]["routes_flipped"]
