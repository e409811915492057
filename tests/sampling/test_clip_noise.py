from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError, InputError
from magi2.sampling.noise import ClipGenerator
from magi2.types import MAX_SEED, derive_seed

VIDEO, AUDIO, REFINED = (1, 16, 3, 4, 6), (1, 20, 24), (1, 16, 5, 8, 12)


def test_golden_noise_is_met(golden: Path) -> None:
    run = load_file(golden / "preview" / "sampling_run.safetensors")
    generator = ClipGenerator(42)
    assert torch.equal(generator.video_noise(VIDEO), run["noise_video"])
    assert torch.equal(generator.audio_noise(AUDIO), run["noise_audio"])


def test_noise_depends_on_the_seed_alone_and_leaves_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ClipGenerator(5).video_noise(VIDEO)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(ClipGenerator(5).video_noise(VIDEO), first)
    assert not torch.equal(ClipGenerator(6).video_noise(VIDEO), first)


def test_a_restored_state_continues_the_stream_at_every_position() -> None:
    generator = ClipGenerator(11)
    expected = [generator.video_noise(VIDEO), generator.audio_noise(AUDIO), generator.refiner_noise(REFINED)]
    for position in range(3):
        again = ClipGenerator(11)
        draws = [lambda g: g.video_noise(VIDEO), lambda g: g.audio_noise(AUDIO), lambda g: g.refiner_noise(REFINED)]
        for draw in draws[:position]:
            draw(again)
        again = ClipGenerator.from_state(again.state(), again.device_type)
        for draw, noise in zip(draws[position:], expected[position:], strict=True):
            assert torch.equal(draw(again), noise)


def test_a_saved_state_is_not_changed_by_later_draws() -> None:
    generator = ClipGenerator(11)
    state = generator.state()
    before = state.clone()
    noise = generator.video_noise(VIDEO)
    assert state.dtype == torch.uint8 and torch.equal(state, before)
    assert torch.equal(ClipGenerator.from_state(state, "cpu").video_noise(VIDEO), noise)


def test_draws_out_of_order_are_refused_and_draw_nothing() -> None:
    generator = ClipGenerator(3)
    with pytest.raises(ContractError, match="audio noise asked for, the clip's next draw is video"):
        generator.audio_noise(AUDIO)
    generator.video_noise(VIDEO)
    with pytest.raises(ContractError, match="video noise asked for, the clip's next draw is audio"):
        generator.video_noise(VIDEO)
    with pytest.raises(ContractError, match="refiner noise asked for"):
        generator.refiner_noise(REFINED)
    generator.audio_noise(AUDIO)
    generator.refiner_noise(REFINED)
    with pytest.raises(ContractError, match="next draw is nothing more"):
        generator.refiner_noise(REFINED)


def test_a_state_of_another_device_type_is_refused() -> None:
    state = ClipGenerator(3).state()
    with pytest.raises(ContractError, match="drawn on 'cuda', it cannot continue on 'cpu'"):
        ClipGenerator.from_state(state, "cuda")


@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(17, dtype=torch.uint8),
        torch.zeros(5057),
        torch.full((5057,), 255, dtype=torch.uint8),
    ],
)
def test_a_state_that_is_none_is_refused(state: torch.Tensor) -> None:
    with pytest.raises(ContractError, match="not a saved random state"):
        ClipGenerator.from_state(state, "cpu")


@pytest.mark.gpu
def test_an_accelerator_stream_continues_on_the_accelerator(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("no accelerator")
    generator = ClipGenerator(3, device)
    assert generator.video_noise(VIDEO).device.type == device.type
    again = ClipGenerator.from_state(generator.state(), device.type, device=device)
    assert torch.equal(again.audio_noise(AUDIO), generator.audio_noise(AUDIO))


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 1.0, True, "42"])
def test_an_impossible_seed_is_refused_with_the_limit(seed: int) -> None:
    with pytest.raises(InputError, match="9007199254740991"):
        ClipGenerator(seed)


def test_the_largest_seed_is_accepted() -> None:
    assert MAX_SEED == 2**53 - 1
    ClipGenerator(MAX_SEED).video_noise(VIDEO)


def test_a_derived_seed_is_the_documented_hash() -> None:
    prompt, digest = "  Ein Fuchs läuft.\n", hashlib.sha256(b"image").hexdigest()
    trimmed = "Ein Fuchs läuft.".encode()
    assert derive_seed(prompt, None) == int(hashlib.sha256(trimmed).hexdigest()[:8], 16)
    with_image = hashlib.sha256(trimmed + b"\0" + bytes.fromhex(digest)).hexdigest()
    assert derive_seed(prompt, digest) == int(with_image[:8], 16)
    assert derive_seed(prompt, digest.upper()) == derive_seed(prompt, digest)
    # A literal: the seed is in the keys of stored clips, so the rule must never change.
    assert derive_seed("a fox", None) == 1589371554


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, "0" * 65])
def test_a_bad_image_digest_is_refused(digest: str) -> None:
    with pytest.raises(InputError, match="image digest"):
        derive_seed("a fox", digest)


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        derive_seed("a \ud800 fox", None)
