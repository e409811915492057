"""The tiny preview model in both dtypes, loaded once."""

from __future__ import annotations

import pytest
import torch

from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from tests.models.preview.preview_goldens import AUDIO_LENGTH, CHECKPOINT, LATENT_SIZE, conditioning, tiny_config


@pytest.fixture(scope="session")
def tiny_models(device: torch.device) -> dict[str, PreviewModel]:
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {n: load_preview(CHECKPOINT, tiny_config(), device=device, compute_dtype=d) for n, d in dtypes.items()}


@pytest.fixture(scope="session")
def i2v_layout(tiny_models: dict[str, PreviewModel], device: torch.device) -> ClipLayout:
    return tiny_models["fp32"].prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v", device))
