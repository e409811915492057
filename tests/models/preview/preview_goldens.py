"""What the preview tests share: golden tensors, the tiny model's inputs, and the measures of the tolerances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from magi2.config.strict import validate
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.config import PreviewConfig

FOLDER = Path(__file__).parents[2] / "golden" / "preview"
CHECKPOINT = FOLDER / "tiny_checkpoint"
LATENT_SIZE = (3, 4, 6)
AUDIO_LENGTH = 20
TIME_TOLERANCE = 1e-5  # absolute, of time channels
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load_golden(name: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    return load_file(FOLDER / f"{name}.safetensors", device=str(device))


def golden_json(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return fields


def tiny_config() -> PreviewConfig:
    published = json.loads((CHECKPOINT / "tiny_config.json").read_text())
    fields = {**published["arch_config"], "data_proxy": published["data_proxy_config"]}
    return validate(PreviewConfig, fields, "tiny_config.json")


def conditioning(case: str, device: torch.device | str = "cpu") -> Conditioning:
    """The tiny model's inputs of the packing and forward goldens: `t2v`, or `i2v` with one image, `two_images`."""
    stored = load_golden("packing_i2v", device)
    latents, figures = stored["ref_image_feat"], stored["ref_image_special_token_embedding"]
    if case == "two_images":
        latents, figures = stored["two_images.ref_image_feat"], stored["two_images.special"]
    count = 0 if case == "t2v" else latents.shape[1]
    images = tuple(ReferenceImage(latents[:, index], figures[0, index]) for index in range(count))
    return Conditioning(stored["txt_feat"], stored["null_txt_feat"], images)


def relative_l2(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def assert_one_bf16_ulp(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2**-7, atol=1e-6)
