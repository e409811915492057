"""Hyper-connections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.models.preview.mhc import MhcWeights, mhc_coefficients, mhc_logits, mhc_post, mhc_pre, sinkhorn
from tests.models.preview.preview_goldens import assert_one_bf16_ulp, load_golden


@pytest.fixture(scope="module")
def stored(device: torch.device) -> dict[str, Tensor]:
    return load_golden("mhc", device)


@pytest.fixture(scope="module")
def weights(stored: dict[str, Tensor]) -> MhcWeights:
    names = ["alpha_pre", "alpha_post", "alpha_res", "bias_pre", "bias_post", "bias_res", "phi_fused"]
    return MhcWeights(*(stored[f"param.{name}"] for name in names))


@pytest.mark.parametrize("iterations", [0, 1, 2, 20])
def test_sinkhorn_equals_the_published_iterations(iterations: int, stored: dict[str, Tensor]) -> None:
    matrix = sinkhorn(stored["sinkhorn.h"], iterations)
    torch.testing.assert_close(matrix, stored[f"sinkhorn.m_iters{iterations}"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_logits_equal_the_published_ones(dtype: str, stored: dict[str, Tensor]) -> None:
    logits = mhc_logits(stored[f"s_{dtype}"], stored["param.norm_weight"], stored["param.phi_fused"], (21,))
    expected = [stored[f"{dtype}.raw_pre"], stored[f"{dtype}.raw_post"], stored[f"{dtype}.raw_res"].flatten(1)]
    torch.testing.assert_close(logits, torch.cat(expected, dim=1), rtol=1e-4, atol=1e-4)


def test_fp32_coefficients_equal_the_published_ones(stored: dict[str, Tensor], weights: MhcWeights) -> None:
    hyper = mhc_coefficients(stored["s_fp32"], stored["param.norm_weight"], weights, (21,))
    for name, value in hyper._asdict().items():
        torch.testing.assert_close(value, stored[f"fp32.h_{name}"], rtol=2e-6, atol=2e-6)


def test_bf16_coefficients_are_rounded_once(stored: dict[str, Tensor], weights: MhcWeights) -> None:
    hyper = mhc_coefficients(stored["s_bf16"], stored["param.norm_weight"], weights, (21,))
    for name, value in hyper._asdict().items():
        assert_one_bf16_ulp(value, stored[f"bf16.h_{name}"])


def test_fp32_streams_equal_the_published_ones(stored: dict[str, Tensor]) -> None:
    streams, branch = stored["s_fp32"], stored["sub_out_fp32"]
    new = mhc_post(streams, stored["fp32.h_res"], stored["fp32.h_post"], branch)
    torch.testing.assert_close(new, stored["fp32.new_streams_kernel"], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(mhc_pre(streams, stored["fp32.h_pre"]), stored["fp32.layer_in"], rtol=2e-6, atol=2e-6)


def test_bf16_streams_are_rounded_once(stored: dict[str, Tensor]) -> None:
    streams, branch = stored["s_bf16"], stored["sub_out_bf16"]
    new = mhc_post(streams, stored["bf16.h_res"], stored["bf16.h_post"], branch)
    assert_one_bf16_ulp(new, stored["bf16.new_streams_kernel"])
    assert_one_bf16_ulp(mhc_pre(streams, stored["bf16.h_pre"]), stored["bf16.layer_in_kernel"])
