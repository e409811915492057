"""The golden toy network of the Wan2.2 autoencoder, saved the way the release is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from magi2.models.video_vae.config import WanVaeConfig


@pytest.fixture(scope="session")
def wan_config() -> WanVaeConfig:
    return WanVaeConfig(encoder_channels=6, decoder_channels=6)


@pytest.fixture(scope="session")
def wan_state(golden: Path) -> dict[str, Tensor]:
    return load_file(golden / "video_vae/tiny_state_dict.safetensors")


@pytest.fixture(scope="session")
def wan_file(wan_state: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vae") / "Wan2.2_VAE.pth"
    torch.save(wan_state, path)
    return path


@pytest.fixture(scope="session")
def expected(golden: Path) -> dict[str, Tensor]:
    return load_file(golden / "video_vae/encode_decode.safetensors")
