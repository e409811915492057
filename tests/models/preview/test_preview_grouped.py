"""Weights per modality."""

from __future__ import annotations

import torch

from magi2.models.preview.grouped import grouped_linear, grouped_rms_norm
from tests.models.preview.preview_goldens import load_golden


def test_norm_with_three_weights_equals_the_published_values(device: torch.device) -> None:
    stored = load_golden("rmsnorm", device)
    sizes, order, back = stored["group_sizes"].tolist(), stored["permute"], stored["inv_permute"]
    y = grouped_rms_norm(stored["x"][order], stored["multi.weight"], sizes)[back]
    torch.testing.assert_close(y, stored["multi.y_fp32"], rtol=2e-6, atol=2e-6)
    rounded = grouped_rms_norm(stored["x"].bfloat16()[order], stored["multi.weight"], sizes)[back]
    torch.testing.assert_close(rounded, stored["multi.y_bf16"], rtol=2**-7, atol=1e-6)


def test_norm_of_heads_equals_the_published_values(device: torch.device) -> None:
    stored = load_golden("rmsnorm", device)
    sizes, order, back = stored["group_sizes"].tolist(), stored["permute"], stored["inv_permute"]
    for x, name in ((stored["x_heads"], "y_fp32"), (stored["x_heads"].bfloat16(), "y_fp32_from_bf16")):
        y = grouped_rms_norm(x[order], stored["qknorm.weight"], sizes, out_dtype=torch.float32)[back]
        torch.testing.assert_close(y, stored[f"qknorm.{name}"], rtol=2e-6, atol=2e-6)


def test_modality_without_tokens_is_allowed(device: torch.device) -> None:
    stored = load_golden("rmsnorm", device)
    order = stored["empty_audio.modality"].argsort(stable=True)
    sizes = stored["empty_audio.group_sizes"].tolist()
    y = grouped_rms_norm(stored["empty_audio.x"][order], stored["multi.weight"], sizes)[order.argsort()]
    torch.testing.assert_close(y, stored["empty_audio.y_fp32"], rtol=2e-6, atol=2e-6)


def test_linear_applies_each_block_to_its_group(device: torch.device) -> None:
    x, weight = torch.randn(5, 4, device=device), torch.randn(9, 4, device=device)
    y = grouped_linear(x, weight, (2, 0, 3), 3)
    torch.testing.assert_close(y, torch.cat([x[:2] @ weight[:3].t(), x[2:] @ weight[6:].t()]))
