"""The written-down audio: latents, waveforms and the autoencoder between them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo_world.audio_autoencoder import MODEL_CONFIG, WEIGHTS_NAME, audio_tensors, write_audio_autoencoder
from demo_world.audio_latents import audio_latents, codes
from demo_world.scenes import SOUNDS, Scene, Sound, draw_scene
from demo_world.sound import delivered_sound, waveform
from demo_world.takes import Take, draw_take
from magi2.errors import CheckpointError
from magi2.models.audio_vae.config import CONFIG_NAME, config_from_json
from magi2.models.audio_vae.state_dict import load_audio_decoder

ROWS = 40
SHIPPED = Path(__file__).parents[2] / "examples" / "demo_checkpoint" / "stable-audio-open-1.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("weights") / "stable-audio-open-1.0"
    write_audio_autoencoder(written)
    return written


def take_of(sound: Sound) -> Take:
    motion = "bounce" if sound == "beeps" else "still"
    return Take(Scene("circle", "red", "black", "small", "fast", motion, sound), pitch_step=1)


@pytest.mark.parametrize("sound", SOUNDS)
def test_the_shipped_weights_decode_latents_to_the_exact_sound(sound: Sound) -> None:
    assert_exact_sound(SHIPPED, take_of(sound))


def test_newly_written_weights_do_so_too(folder: Path) -> None:
    assert (folder / CONFIG_NAME).read_bytes() == (SHIPPED / CONFIG_NAME).read_bytes()
    assert_exact_sound(folder, take_of("rise"))


def assert_exact_sound(weights: Path, take: Take) -> None:
    truth = waveform(take, ROWS)
    with torch.inference_mode():
        decoded = load_audio_decoder(weights).decode(audio_latents(take, ROWS))
    assert (decoded - truth).norm() <= 1e-5 * truth.norm() + 1e-6  # 100 dB


def test_the_same_weights_are_written_again(folder: Path, tmp_path: Path) -> None:
    write_audio_autoencoder(tmp_path)
    assert (tmp_path / WEIGHTS_NAME).read_bytes() == (folder / WEIGHTS_NAME).read_bytes()


def test_too_narrow_a_network_is_refused() -> None:
    narrow = config_from_json(MODEL_CONFIG)
    narrow = replace(narrow, decoder=replace(narrow.decoder, c_mults=(2, 8, 14, 16, 40)))
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
