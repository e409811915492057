"""Loading one half of the Wan file: strict inside the half, blind to the other."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.loading import load_wan_decoder, load_wan_encoder


class Arbitrary:
    pass


def save(content: dict[str, object], folder: Path) -> Path:
    path = folder / "Wan2.2_VAE.pth"
    torch.save(content, path)
    return path


def test_encoder_loads_without_the_decoder_half(
    wan_state: dict[str, Tensor], wan_config: WanVaeConfig, tmp_path: Path
) -> None:
    path = save({k: v for k, v in wan_state.items() if k.startswith(("encoder.", "conv1."))}, tmp_path)
    encoder = load_wan_encoder(path, wan_config, device="cpu", dtype=torch.bfloat16)
    assert {p.dtype for p in encoder.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad or p.is_meta for p in encoder.parameters())
    with pytest.raises(CheckpointError, match=r"Wan2.2_VAE.pth: 110 tensors are missing, first 'conv2.bias'"):
        load_wan_decoder(path, wan_config, device="cpu")


def test_the_other_half_is_listed(wan_file: Path, wan_config: WanVaeConfig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="magi2.models.video_vae.loading"):
        load_wan_encoder(wan_file, wan_config, device="cpu")
    assert "decoder.head.0.gamma" in caplog.text
    assert "encoder.head.0.gamma" not in caplog.text


def test_missing_tensor_is_named_with_its_file(
    wan_state: dict[str, Tensor], wan_config: WanVaeConfig, tmp_path: Path
) -> None:
    path = save({k: v for k, v in wan_state.items() if k != "decoder.conv1.bias"}, tmp_path)
    with pytest.raises(CheckpointError, match=r"Wan2.2_VAE.pth: 1 tensors are missing, first 'decoder.conv1.bias'"):
        load_wan_decoder(path, wan_config, device="cpu")


@pytest.mark.parametrize("name", ["encoder.extra.weight", "stray"])
def test_unexpected_tensor_is_named_with_its_file(
    wan_state: dict[str, Tensor], wan_config: WanVaeConfig, tmp_path: Path, name: str
) -> None:
    path = save(wan_state | {name: torch.zeros(1)}, tmp_path)
    with pytest.raises(CheckpointError, match=rf"Wan2.2_VAE.pth: 1 tensors that this model does not have.*'{name}'"):
        load_wan_encoder(path, wan_config, device="cpu")


def test_misshaped_tensor_is_named_with_its_file(wan_file: Path, device: torch.device) -> None:
    with pytest.raises(CheckpointError, match=r"Wan2.2_VAE.pth: .*: shape \(.*\), the model wants \(.*\)"):
        load_wan_encoder(wan_file, WanVaeConfig(encoder_channels=8), device=device)


def test_file_with_an_arbitrary_object_is_refused(
    wan_state: dict[str, Tensor], wan_config: WanVaeConfig, tmp_path: Path
) -> None:
    path = save(wan_state | {"encoder.note": Arbitrary()}, tmp_path)
    with pytest.raises(CheckpointError, match="unreadable as a weights-only checkpoint"):
        load_wan_encoder(path, wan_config, device="cpu")


def test_value_that_is_no_tensor_is_refused(
    wan_state: dict[str, Tensor], wan_config: WanVaeConfig, tmp_path: Path
) -> None:
    path = save(wan_state | {"epoch": 3}, tmp_path)
    with pytest.raises(CheckpointError, match="'epoch' is a int, not a tensor"):
        load_wan_encoder(path, wan_config, device="cpu")
