"""The three golden toy decoders, saved the way the release is: a JSON file beside a pickled checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

CONFIG_NAME = "TurboV3-Wan22-TinyShallow_7_7.json"
WEIGHTS_NAME = "checkpoint.ckpt"


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """A slash in a golden tensor's name is one level of nesting."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split("/")
        level = nested
        for key in path:
            level = level.setdefault(key, {})
        level[last] = value
    return nested


@pytest.fixture(scope="session")
def turbo_checkpoint(golden: Path) -> Callable[[str], dict[str, Any]]:
    """The content of a golden case's `checkpoint.ckpt`; case A with the zeroed plain weights that must lose."""

    def build(case: str) -> dict[str, Any]:
        content = nest(load_file(golden / f"turbo_vae/{case}_checkpoint_tensors.safetensors"))
        if case == "A":
            content["state_dict"] = {n: torch.zeros_like(t) for n, t in content["ema_state_dict"].items()}
        return content

    return build


@pytest.fixture
def save_turbo(golden: Path, tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """Writes a golden case's configuration and any checkpoint content into a folder of the published layout."""

    def save(case: str, content: dict[str, Any]) -> Path:
        folder = tmp_path / "turbo_vae"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(golden / f"turbo_vae/{case}_config.json", folder / CONFIG_NAME)
        torch.save(content, folder / WEIGHTS_NAME)
        return folder

    return save
