"""The golden text encoder and its expected values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from magi2.models.text_encoder.encoder import TextEncoder, load_text_encoder
from magi2.models.text_encoder.tiny import write_tiny_text_encoder


@pytest.fixture(scope="session")
def golden_text(golden: Path) -> Path:
    return golden / "text_encoder"


@pytest.fixture(scope="session")
def text_vectors(golden_text: Path) -> dict[str, Tensor]:
    return load_file(golden_text / "embeddings.safetensors")


@pytest.fixture(scope="session")
def text_prompts(golden_text: Path) -> dict[str, Any]:
    prompts: dict[str, Any] = json.loads((golden_text / "prompts.json").read_text(encoding="utf-8"))
    return prompts


@pytest.fixture(scope="session")
def exact_encoder(golden_text: Path, device: torch.device) -> TextEncoder:
    """The golden encoder in fp32."""
    return load_text_encoder(golden_text / "tiny_text_encoder", device=device, dtype=torch.float32)


@pytest.fixture(scope="session")
def tiny_text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "text_encoder"
    write_tiny_text_encoder(folder, seed=7)
    return folder
