"""The written-down audio: latents, waveforms and the autoencoder between them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from magi2.errors import CheckpointError
from magi2.models.audio_vae.config import config_from_json
from magi2.models.audio_vae.state_dict import PREFIX, fold_weight_norm, load_audio_decoder
from tools.demo_checkpoint.audio_autoencoder import MODEL_CONFIG, WEIGHTS_NAME, audio_tensors, write_audio_autoencoder
from tools.demo_checkpoint.audio_latents import audio_latents, codes
from tools.demo_checkpoint.scenes import SOUNDS, Scene, Sound, draw_scene
from tools.demo_checkpoint.sound import delivered_sound, waveform
from tools.demo_checkpoint.takes import Take, draw_take

ROWS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("weights") / "stable-audio-open-1.0"
    write_audio_autoencoder(written)
    return written


def take_of(sound: Sound) -> Take:
    motion = "bounce" if sound == "beeps" else "still"
    return Take(Scene("circle", "red", "black", "small", "fast", motion, sound), pitch_step=1)


@pytest.mark.parametrize("sound", SOUNDS)
def test_latents_decode_to_the_exact_sound_and_encode_back(folder: Path, sound: Sound) -> None:
    take = take_of(sound)
    latents, truth = audio_latents(take, ROWS), waveform(take, ROWS)
    with torch.inference_mode():
        decoded = load_audio_decoder(folder).decode(latents)
        returned = encode(load_file(folder / WEIGHTS_NAME), truth)
    assert (decoded - truth).norm() <= 1e-5 * truth.norm() + 1e-6  # 100 dB
    assert (returned - latents).abs().max() < 1e-4


def encode(tensors: dict[str, Tensor], samples: Tensor) -> Tensor:
    """The published encoder's means for [2, n] samples, without its residual units and snakes, which are idle."""
    gains = {name: tensor for name, tensor in tensors.items() if ".layers.3.weight_g" in name}
    assert gains and all(not gain.any() for gain in gains.values())

    def convolve(x: Tensor, name: str, **sliding: int) -> Tensor:
        stored = PREFIX + "encoder.layers." + name
        weight = fold_weight_norm(tensors[f"{stored}.weight_g"], tensors[f"{stored}.weight_v"])
        return functional.conv1d(x, weight, tensors[f"{stored}.bias"], **sliding)

    x = convolve(samples[None], "0", padding=3)
    for number, stride in enumerate((2, 4, 4, 8, 8), start=1):
        x = convolve(x, f"{number}.layers.4", stride=stride, padding=stride // 2)
    return convolve(x, "7", padding=1)[:, :64].transpose(1, 2)


def test_the_same_weights_are_written_again(folder: Path, tmp_path: Path) -> None:
    write_audio_autoencoder(tmp_path)
    assert (tmp_path / WEIGHTS_NAME).read_bytes() == (folder / WEIGHTS_NAME).read_bytes()


def test_too_narrow_a_network_is_refused() -> None:
    narrow = config_from_json(MODEL_CONFIG)
    narrow = type(narrow)(narrow.encoder, type(narrow.decoder)(2, 2, (1, 2, 4, 8, 32), (2, 4, 4, 8, 8), 64))
    with pytest.raises(CheckpointError, match="16 channels lose"):
        audio_tensors(narrow)


def test_codes_are_orthonormal_and_latents_of_drawn_takes_have_unit_power() -> None:
    assert torch.equal(codes() @ codes().T, torch.eye(len(codes()), dtype=torch.float64))
    rng = random.Random(3)
    power = [audio_latents(draw_take(draw_scene(rng), rng)).square().mean() for _ in range(200)]
    assert 0.8 < torch.stack(power).mean() < 1.2
    assert not audio_latents(take_of("silence")).any()


def test_the_delivered_sound_keeps_its_pitch() -> None:
    sound = delivered_sound(take_of("mid"))
    assert sound.shape == (2, 441_000)
    spectrum = torch.fft.rfft(sound[0]).abs()
    assert spectrum.argmax() == 5250  # tenths of a hertz, because the sound lasts ten seconds
