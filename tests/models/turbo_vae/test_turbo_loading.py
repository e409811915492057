"""Loading the published turbo folder: which state wins, what is skipped, what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from magi2.errors import CheckpointError
from magi2.models.turbo_vae.loading import load_turbo_decoder

Build = Callable[[str], dict[str, Any]]
Save = Callable[[str, dict[str, Any]], Path]


class Arbitrary:
    pass


def test_averaged_weights_win_and_stray_heads_are_listed(
    turbo_checkpoint: Build, save_turbo: Save, caplog: pytest.LogCaptureFixture
) -> None:
    content = turbo_checkpoint("A")
    with caplog.at_level(logging.DEBUG, logger="magi2.models.turbo_vae.loading"):
        decoder = load_turbo_decoder(save_turbo("A", content), device="cpu")
    wanted = content["ema_state_dict"]["module.decoder.conv_in.conv.weight"]
    assert torch.equal(decoder.decoder.conv_in.conv.weight, wanted.bfloat16())
    assert not any(p.requires_grad or p.is_meta for p in decoder.parameters())
    assert "aligned_feature_projection_heads.0.weight" in caplog.text


def test_projection_heads_inside_the_decoder_are_skipped(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("C")
    content["state_dict"]["decoder.aligned_feature_projection_heads.0.weight"] = torch.zeros(3, 3)
    load_turbo_decoder(save_turbo("C", content), device="cpu")


def test_other_networks_and_counters_of_a_bare_mapping_are_skipped(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("C")["state_dict"] | {"encoder.conv_in.weight": torch.zeros(2), "epoch": 3}
    load_turbo_decoder(save_turbo("C", content), device="cpu")


def test_missing_tensor_is_named_with_its_file(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("C")
    del content["state_dict"]["decoder.conv_out.conv.bias"]
    with pytest.raises(CheckpointError, match=r"checkpoint.ckpt: 1 tensors are missing, .*decoder.conv_out.conv.bias"):
        load_turbo_decoder(save_turbo("C", content), device="cpu")


@pytest.mark.parametrize(("case", "name"), [("B", "conv_in.conv.scale"), ("C", "decoder.conv_in.conv.scale")])
def test_unexpected_tensor_is_named_with_its_file(
    turbo_checkpoint: Build, save_turbo: Save, case: str, name: str
) -> None:
    content = turbo_checkpoint(case)
    content.get("state_dict", content)[name] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=rf"checkpoint.ckpt: 1 tensors that this model does not have.*'{name}'"):
        load_turbo_decoder(save_turbo(case, content), device="cpu")


def test_misshaped_tensor_is_named_with_its_file(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("B")
    content["conv_in.conv.bias"] = torch.zeros(5)
    with pytest.raises(CheckpointError, match=r"checkpoint.ckpt: conv_in.conv.bias: shape \(5,\), .* \(12,\)"):
        load_turbo_decoder(save_turbo("B", content), device="cpu")


def test_tensor_stored_twice_is_refused(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("C")
    content["state_dict"]["module.decoder.conv_in.conv.bias"] = torch.zeros(12)
    with pytest.raises(CheckpointError, match="some tensors are there twice"):
        load_turbo_decoder(save_turbo("C", content), device="cpu")


def test_file_with_an_arbitrary_object_is_refused(turbo_checkpoint: Build, save_turbo: Save) -> None:
    content = turbo_checkpoint("C") | {"note": Arbitrary()}
    with pytest.raises(CheckpointError, match="unreadable as a weights-only checkpoint"):
        load_turbo_decoder(save_turbo("C", content), device="cpu")


def test_state_that_is_no_mapping_is_refused(save_turbo: Save) -> None:
    with pytest.raises(CheckpointError, match="the state is a list"):
        load_turbo_decoder(save_turbo("C", {"state_dict": []}), device="cpu")


def test_missing_files_are_named(turbo_checkpoint: Build, save_turbo: Save, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"7_7.json"):
        load_turbo_decoder(tmp_path, device="cpu")
    folder = save_turbo("C", turbo_checkpoint("C"))
    (folder / "checkpoint.ckpt").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint.ckpt: weight file is missing"):
        load_turbo_decoder(folder, device="cpu")
