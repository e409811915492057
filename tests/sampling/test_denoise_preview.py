from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from magi2.errors import CancelledError, ConfigError, ContractError
from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.preview import SamplerState, denoise_preview
from magi2.sampling.schedule import Schedule
from magi2.sampling.unipc import FlowUniPC

STEPS = 7
CONFIG = GuidanceConfig(use_cfg_trick=True, cfg_trick_start_frame=1, use_dynamic_cfg=True, cfg_rescale=0.4)


class ToyLayout(NamedTuple):
    conditional: float
    unconditional: float


class ToyModel:
    """A smooth velocity field in which video and audio see each other; remembers the timesteps it was given."""

    def __init__(self) -> None:
        self.timesteps: list[Tensor] = []

    def __call__(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: ToyLayout) -> tuple[Tensor, Tensor]:
        self.timesteps.append(timestep)
        time = timestep / 1000
        coupled = video.mean() + audio.mean()
        return (
            torch.cat([torch.sin(video * weight) + time * coupled for weight in layout]),
            torch.cat([torch.cos(audio * weight) - time * coupled for weight in layout]),
        )


LAYOUT = ToyLayout(1.3, 0.4)


@pytest.fixture
def noise(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    video = torch.randn(1, 4, 3, 2, 5, generator=generator)
    return video.to(device), torch.randn(1, 6, 8, generator=generator).to(device)


def denoise(noise: tuple[Tensor, Tensor], **options: object) -> tuple[Tensor, Tensor]:
    arguments = {"num_steps": STEPS, "shift": 7.0, "guidance": CONFIG} | options
    return denoise_preview(ToyModel(), LAYOUT, *noise, **arguments)


def states_of(noise: tuple[Tensor, Tensor], every: int = 1) -> list[SamplerState]:
    states: list[SamplerState] = []
    denoise(noise, snapshot_every=every, on_snapshot=states.append)
    return states


def test_each_step_sees_the_video_timestep_and_ends_in_fp32_latents(noise: tuple[Tensor, Tensor]) -> None:
    model = ToyModel()
    video, audio = denoise_preview(model, LAYOUT, *noise, num_steps=STEPS, shift=7.0, guidance=CONFIG)
    assert torch.stack(model.timesteps).tolist() == FlowUniPC(STEPS, 7.0).timesteps.tolist()
    assert all(t.dim() == 0 and t.dtype == torch.int64 and t.device == noise[0].device for t in model.timesteps)
    assert (video.shape, audio.shape) == (noise[0].shape, noise[1].shape)
    assert video.dtype == audio.dtype == torch.float32
    assert not video.requires_grad


def test_progress_counts_every_step(noise: tuple[Tensor, Tensor]) -> None:
    seen: list[tuple[int, int]] = []
    denoise(noise, on_step=lambda done, total: seen.append((done, total)))
    assert seen == [(done, STEPS) for done in range(1, STEPS + 1)]


def test_resuming_after_any_step_ends_bit_equal(noise: tuple[Tensor, Tensor]) -> None:
    unbroken = denoise(noise)
    states = states_of(noise)
    assert [state.step for state in states] == list(range(1, STEPS))
    for state in states:
        restored = SamplerState.from_tensors(load(save(state.tensors())))
        seen: list[int] = []
        video, audio = denoise(noise, resume=restored, on_step=lambda done, total, seen=seen: seen.append(done))
        assert torch.equal(video, unbroken[0]) and torch.equal(audio, unbroken[1])
        assert seen == list(range(state.step + 1, STEPS + 1))


def test_a_resumed_run_can_be_resumed_again(noise: tuple[Tensor, Tensor]) -> None:
    states = states_of(noise)
    later: list[SamplerState] = []
    denoise(noise, resume=states[1], snapshot_every=1, on_snapshot=later.append)
    for state, again in zip(states[2:], later, strict=True):
        assert state.step == again.step
        pairs = zip(state.tensors().values(), again.tensors().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_snapshots_come_at_their_interval_and_never_after_the_last_step(noise: tuple[Tensor, Tensor]) -> None:
    assert [state.step for state in states_of(noise, every=3)] == [3, 6]
    assert [state.step for state in states_of(noise, every=STEPS)] == []
    assert states_of(noise, every=0) == []


def test_a_stop_in_the_progress_call_comes_after_the_snapshot(noise: tuple[Tensor, Tensor]) -> None:
    states: list[SamplerState] = []

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        denoise(noise, on_step=stop, snapshot_every=2, on_snapshot=states.append)
    assert states[-1].step == 4
    assert torch.equal(denoise(noise, resume=states[-1])[0], denoise(noise)[0])


def test_a_state_of_another_run_is_refused(noise: tuple[Tensor, Tensor]) -> None:
    state = states_of(noise)[2]
    with pytest.raises(ContractError, match="another schedule"):
        denoise(noise, resume=state, num_steps=STEPS + 1)
    with pytest.raises(ContractError, match="sampler state has audio"):
        denoise((noise[0], noise[1][:, :-1]), resume=state)
    with pytest.raises(ContractError, match="sampler state of step 5"):
        denoise(noise, resume=SamplerState(state.video, state.audio, state.video_solver, state.audio_solver, 5))


@pytest.mark.parametrize("name", ["video", "audio", "step"])
def test_an_incomplete_state_file_is_refused(noise: tuple[Tensor, Tensor], name: str) -> None:
    tensors = states_of(noise)[0].tensors()
    del tensors[name]
    with pytest.raises(ContractError, match=f"lacks '{name}'"):
        SamplerState.from_tensors(tensors)


def test_noise_of_the_wrong_kind_is_refused(noise: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ContractError, match=r"video noise is torch\.bfloat16"):
        denoise((noise[0].bfloat16(), noise[1]))
    with pytest.raises(ContractError, match="audio noise"):
        denoise((noise[0], noise[1][0]))


def test_a_model_without_unconditional_half_is_refused(noise: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ContractError, match="video velocity is"):
        denoise_preview(
            lambda video, audio, t, layout: (video, audio), None, *noise, num_steps=2, shift=7.0, guidance=CONFIG
        )


def test_the_noise_is_not_written_to(noise: tuple[Tensor, Tensor]) -> None:
    before = noise[0].clone(), noise[1].clone()
    denoise(noise)
    assert torch.equal(noise[0], before[0]) and torch.equal(noise[1], before[1])


@pytest.mark.gpu
def test_no_step_makes_the_host_wait(noise: tuple[Tensor, Tensor]) -> None:
    if noise[0].device.type != "cuda":
        pytest.skip("needs CUDA's synchronisation check")
    config = GuidanceConfig(use_cfg_trick=True, use_dynamic_cfg=True, use_skimmed_cfg_linear=True, cfg_rescale=0.5)
    denoise(noise, guidance=config)

    def watch(done: int, total: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if done < total else "default")

    try:
        denoise(noise, guidance=config, on_step=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


SCHEDULE = Schedule(guide_until_step=4, reuse_steps=(2, 3, 6))
"""Of seven steps the first two guided, two that reuse a velocity, two without guidance, and one that reuses again."""


class OneBranch(ToyModel):
    """Evaluates as many branches as the layout has values, and remembers how many."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[int] = []

    def __call__(
        self, video: Tensor, audio: Tensor, timestep: Tensor, layout: tuple[float, ...]
    ) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        self.branches.append(len(layout))
        return super().__call__(video, audio, timestep, layout)  # type: ignore[arg-type]


def scheduled(noise: tuple[Tensor, Tensor], model: ToyModel | None = None, **options: object) -> tuple[Tensor, Tensor]:
    arguments = {"num_steps": STEPS, "shift": 7.0, "guidance": CONFIG, "schedule": SCHEDULE} | options
    return denoise_preview(model or OneBranch(), LAYOUT, *noise, conditional_layout=LAYOUT[:1], **arguments)


def test_a_schedule_evaluates_what_it_says_and_tells_every_step(noise: tuple[Tensor, Tensor]) -> None:
    model, seen = OneBranch(), []
    scheduled(noise, model, on_step=lambda done, total: seen.append((done, total)))
    assert model.branches == [2, 2, 1, 1]
    timesteps = FlowUniPC(STEPS, 7.0).timesteps.tolist()
    assert torch.stack(model.timesteps).tolist() == [timesteps[step] for step in (0, 1, 4, 5)]
    assert seen == [(done, STEPS) for done in range(1, STEPS + 1)]


def test_solvers_are_given_the_guided_velocity_again_and_without_guidance_the_conditional_one(
    noise: tuple[Tensor, Tensor],
) -> None:
    model, guide, latents = ToyModel(), Guidance(CONFIG, latent_frames=3, device=noise[0].device), noise
    solvers = FlowUniPC(STEPS, 7.0), FlowUniPC(STEPS, 7.0)
    for step, timestep in enumerate(solvers[0].timesteps):
        if step not in SCHEDULE.reuse_steps:
            pairs = model(*latents, timestep.to(noise[0].device), LAYOUT)
            guided = guide.video(pairs[0], latents[0], int(timestep)), guide.audio(pairs[1], latents[1])
            velocities = guided if step < 4 else (pairs[0][:1], pairs[1][:1])
        latents = tuple(solver.step(v, x) for solver, v, x in zip(solvers, velocities, latents, strict=True))  # type: ignore[assignment]
    found = scheduled(noise)
    assert torch.equal(found[0], latents[0]) and torch.equal(found[1], latents[1])


def test_a_schedule_that_changes_nothing_leaves_every_bit(noise: tuple[Tensor, Tensor]) -> None:
    for schedule in (Schedule(), Schedule(STEPS)):
        video, audio = denoise(noise, schedule=schedule)
        assert torch.equal(video, denoise(noise)[0]) and torch.equal(audio, denoise(noise)[1])


def test_a_scheduled_run_resumed_after_any_step_ends_bit_equal(noise: tuple[Tensor, Tensor]) -> None:
    states: list[SamplerState] = []
    unbroken = scheduled(noise, snapshot_every=1, on_snapshot=states.append)
    for state in states:
        model = OneBranch()
        video, audio = scheduled(noise, model, resume=SamplerState.from_tensors(load(save(state.tensors()))))
        assert torch.equal(video, unbroken[0]) and torch.equal(audio, unbroken[1])
        assert model.branches == [branches for branches in SCHEDULE.branches(STEPS)[state.step :] if branches]


def test_a_state_without_the_velocity_that_is_reused_next_is_refused(noise: tuple[Tensor, Tensor]) -> None:
    states: list[SamplerState] = []
    scheduled(noise, snapshot_every=2, on_snapshot=states.append)
    with pytest.raises(ContractError, match="sampler state of step 2 lacks the velocities"):
        scheduled(noise, resume=replace(states[0], velocities=None))


def test_a_run_without_guidance_evaluates_one_branch_a_step(noise: tuple[Tensor, Tensor]) -> None:
    model = OneBranch()
    denoise_preview(
        model,
        None,
        *noise,
        conditional_layout=LAYOUT[:1],
        num_steps=8,
        shift=7.0,
        guidance=CONFIG,
        schedule=Schedule(0),
    )
    assert model.branches == [1] * 8


def test_steps_without_guidance_need_their_layout(noise: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ContractError, match="no layout was prepared"):
        denoise(noise, schedule=Schedule(3))
    with pytest.raises(ConfigError, match="must be from 0"):
        denoise(noise, schedule=Schedule(STEPS + 1))
