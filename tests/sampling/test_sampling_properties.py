from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.noise import ClipGenerator
from magi2.sampling.unipc import FlowUniPC
from magi2.types import MAX_SEED, derive_seed

SHAPE = (3, 5, 2, 2)  # C, T, H, W
scales = st.floats(0, 20, width=32)
seeds = st.integers(0, MAX_SEED)
configs = st.builds(
    GuidanceConfig,
    video_txt_guidance_scale=scales,
    audio_txt_guidance_scale=scales,
    use_cfg_trick=st.booleans(),
    cfg_trick_start_frame=st.integers(0, 8),
    cfg_trick_value=scales,
    use_dynamic_cfg=st.booleans(),
    dynamic_cfg_start_t=st.integers(0, 1000),
    dynamic_cfg_cutoff_value=scales,
    use_skimmed_cfg_linear=st.booleans(),
    skimmed_cfg_scale=scales,
    cfg_rescale=st.floats(0, 1, width=32),
)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain(scale: float) -> Guidance:
    return Guidance(GuidanceConfig(video_txt_guidance_scale=scale), latent_frames=SHAPE[1], device="cpu")


@settings(max_examples=60, deadline=None)
@given(configs, seeds, st.integers(0, 999))
def test_guidance_keeps_shape_and_stays_finite(config: GuidanceConfig, seed: int, timestep: int) -> None:
    guide = Guidance(config, latent_frames=SHAPE[1], device="cpu")
    video = guide.video(normal(seed, 2, *SHAPE), normal(seed + 1, 1, *SHAPE), timestep)
    audio = guide.audio(normal(seed, 2, 4, 6), normal(seed + 1, 1, 4, 6))
    assert video.shape == (1, *SHAPE) and audio.shape == (1, 4, 6)
    assert video.isfinite().all() and audio.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(configs, st.integers(0, 999))
def test_no_option_raises_the_video_scale(config: GuidanceConfig, timestep: int) -> None:
    scale = Guidance(config, latent_frames=SHAPE[1], device="cpu").video_scale(timestep)
    assert (scale >= 0).all() and (scale <= config.video_txt_guidance_scale).all()


@settings(max_examples=30, deadline=None)
@given(scales, seeds)
def test_equal_halves_are_their_own_guidance(scale: float, seed: int) -> None:
    half, latents = normal(seed, 1, *SHAPE), normal(seed + 1, 1, *SHAPE)
    assert torch.equal(plain(scale).video(torch.cat([half, half]), latents, 500), half)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_scales_zero_and_one_pick_a_half(seed: int) -> None:
    pair, latents = normal(seed, 2, *SHAPE), normal(seed + 1, 1, *SHAPE)
    assert torch.equal(plain(0.0).video(pair, latents, 500), pair[1:])
    torch.testing.assert_close(plain(1.0).video(pair, latents, 500), pair[:1])


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 2))
def test_a_generator_can_be_saved_between_any_draws(seed: int, position: int) -> None:
    whole = ClipGenerator(seed)
    expected = [whole.video_noise((1, 3)), whole.audio_noise((1, 4)), whole.refiner_noise((1, 5))]
    broken = ClipGenerator(seed)
    for index, name in enumerate(("video_noise", "audio_noise", "refiner_noise")):
        if index == position:
            broken = ClipGenerator.from_state(broken.state(), "cpu")
        assert torch.equal(getattr(broken, name)((1, 3 + index)), expected[index])


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary(min_size=32, max_size=32))
def test_a_derived_seed_is_valid_and_ignores_outer_white_space(prompt: str, digest: bytes | None) -> None:
    image = digest.hex() if digest is not None else None
    seed = derive_seed(prompt, image)
    assert 0 <= seed < 2**32
    assert seed == derive_seed(f" \n{prompt}\t ", image)
    ClipGenerator(seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1000), st.floats(0.5, 20))
def test_schedules_fall_from_noise_to_zero(num_steps: int, shift: float) -> None:
    solver = FlowUniPC(num_steps, shift)
    assert solver.sigmas[0] < 1 and solver.sigmas[-1] == 0
    assert (solver.sigmas.diff() < 0).all()
    assert (solver.timesteps.diff() <= 0).all()
    assert solver.timesteps.min() >= 0 and solver.timesteps.max() <= 999


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.floats(0.5, 20), seeds)
def test_a_straight_flow_is_solved_exactly(num_steps: int, shift: float, seed: int) -> None:
    """When the velocity always points from one clean sample to the noise, any number of steps ends in that sample."""
    clean, noise = normal(seed, 1, 6), normal(seed + 1, 1, 6)
    solver = FlowUniPC(num_steps, shift)
    first = solver.sigmas[0]
    sample = first * noise + (1 - first) * clean
    for _ in range(num_steps):
        sample = solver.step(noise - clean, sample)
    torch.testing.assert_close(sample, clean, rtol=0, atol=2e-4)
