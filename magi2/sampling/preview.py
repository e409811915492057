"""The preview stage's denoising loop: noise to video and audio latents, resumable after every step.

Source: MAGI-2 preview inference code, sampler loop.
"""

# Shapes: C channels, T latent frames, H x W latent cells, A audio latents. Video [1, C, T, H, W], audio [1, A, C].

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.schedule import EVERY_STEP, GUIDED, Schedule
from magi2.sampling.unipc import FlowUniPC

LayoutT = TypeVar("LayoutT")
LayoutT_contra = TypeVar("LayoutT_contra", contravariant=True)


class VelocityModel(Protocol[LayoutT_contra]):
    """Predicts velocities [P, ...] of video and audio (index 0 conditional) from one sample's latents [1, ...].

    `timestep` is a 0-dim int64 tensor on the latents' device; `layout` is whatever the model prepared for the clip's
    P branches, two or the conditional one alone.
    """

    def __call__(
        self, video: Tensor, audio: Tensor, timestep: Tensor, layout: LayoutT_contra, /
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class SamplerState:
    """Everything between two steps: the latents after `step` steps and both solvers' states.

    `velocities` are what the last step's solvers were given for video and audio, where the schedule reuses any.
    """

    video: Tensor
    audio: Tensor
    video_solver: Mapping[str, Tensor]
    audio_solver: Mapping[str, Tensor]
    step: int
    velocities: tuple[Tensor, Tensor] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """A flat dict of contiguous tensors for one safetensors file; `from_tensors` reads it back."""
        flat = {"video": self.video, "audio": self.audio, "step": torch.tensor(self.step)}
        flat |= {f"video_solver.{name}": tensor for name, tensor in self.video_solver.items()}
        flat |= {f"audio_solver.{name}": tensor for name, tensor in self.audio_solver.items()}
        if self.velocities is not None:
            flat["velocity.video"], flat["velocity.audio"] = self.velocities
        return {name: tensor.contiguous() for name, tensor in flat.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> SamplerState:
        """The state that `tensors()` flattened. Raises ContractError naming a missing or foreign tensor."""
        missing = {"video", "audio", "step"} - tensors.keys()
        if missing:
            raise ContractError(f"sampler state lacks {sorted(missing)[0]!r}")
        velocities = _section(tensors, "velocity.")
        return cls(
            video=tensors["video"],
            audio=tensors["audio"],
            video_solver=_section(tensors, "video_solver."),
            audio_solver=_section(tensors, "audio_solver."),
            step=int(tensors["step"]),
            velocities=(velocities["video"], velocities["audio"]) if velocities else None,
        )


def denoise_preview(
    model: VelocityModel[LayoutT],
    layout: LayoutT | None,
    video_noise: Tensor,
    audio_noise: Tensor,
    *,
    num_steps: int,
    shift: float,
    guidance: GuidanceConfig,
    schedule: Schedule = EVERY_STEP,
    conditional_layout: LayoutT | None = None,
    on_step: Callable[[int, int], None] | None = None,
    resume: SamplerState | None = None,
    snapshot_every: int = 0,
    on_snapshot: Callable[[SamplerState], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Video latents [1, C, T, H, W] and audio latents [1, A, C], fp32, on the device of the noise.

    `layout` holds both branches, `conditional_layout` the conditional one for steps that `schedule` does not guide; one
    that no step needs may be None. `on_step(done, total)` is called when a step has been issued; on an accelerator it
    may still be computing. `on_snapshot` gets the state after every `snapshot_every`-th step but the last (0 = never);
    its tensors stay valid, no later step writes to them. `resume` continues from such a state and ends in the bits of
    an unbroken run; the noise then only says device and shapes. Raises ContractError on noise, velocities or a state
    that do not fit, ConfigError for a schedule that no run of so many steps may have.
    """
    solvers = FlowUniPC(num_steps, shift), FlowUniPC(num_steps, shift)
    schedule = schedule.resolved(num_steps) or EVERY_STEP
    video, audio, first_step = _start(solvers, video_noise, audio_noise, resume)
    velocities = _Velocities(
        model,
        {GUIDED: layout, 1: conditional_layout},
        Guidance(guidance, latent_frames=video.shape[2], device=video.device),
        schedule.branches(num_steps),
        solvers[0].timesteps,
        solvers[0].timesteps.to(video.device),  # moved once: the model takes one entry a step without waiting
        _last_velocities(resume, video.device),
    )
    with torch.no_grad():
        for step in range(first_step, num_steps):
            of_video, of_audio = velocities.at(step, video, audio)
            video, audio = solvers[0].step(of_video, video), solvers[1].step(of_audio, audio)
            done = step + 1
            if on_snapshot and snapshot_every > 0 and done % snapshot_every == 0 and done < num_steps:
                states = solvers[0].state_dict(), solvers[1].state_dict()
                kept = velocities.last if schedule.reuse_steps else None
                on_snapshot(SamplerState(video, audio, *states, done, kept))
            if on_step:
                on_step(done, num_steps)
    return video, audio


@dataclass
class _Velocities(Generic[LayoutT]):
    """What the solvers consume at each step; `last` is what they were given before."""

    model: VelocityModel[LayoutT]
    layouts: Mapping[int, LayoutT | None]
    guide: Guidance
    branches: Sequence[int]
    timesteps: Tensor
    device_timesteps: Tensor
    last: tuple[Tensor, Tensor] | None

    def at(self, step: int, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Velocities of video and audio, evaluated or taken over. Raises ContractError when they do not fit."""
        branches = self.branches[step]
        if branches:
            predicted = self.model(video, audio, self.device_timesteps[step], self._layout(branches))
            for name, velocity, latents in zip(("video", "audio"), predicted, (video, audio), strict=True):
                _check_velocity(name, velocity, latents, branches)
            guided = branches == GUIDED
            self.last = self.guide.both(*predicted, video, audio, int(self.timesteps[step])) if guided else predicted
        if self.last is None:
            raise ContractError(f"sampler state of step {step} lacks the velocities that the next step reuses")
        return self.last

    def _layout(self, branches: int) -> LayoutT:
        layout = self.layouts[branches]
        if layout is None and branches == 1:
            raise ContractError("the schedule has steps without guidance, no layout was prepared for them")
        return cast(LayoutT, layout)  # None is as good as any other for a model that needs none


def _section(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _start(
    solvers: tuple[FlowUniPC, FlowUniPC], video_noise: Tensor, audio_noise: Tensor, resume: SamplerState | None
) -> tuple[Tensor, Tensor, int]:
    """Latents and index of the first step to do; loads the solvers when there is a state to resume from."""
    for name, noise, dims in (("video", video_noise, 5), ("audio", audio_noise, 3)):
        if noise.dtype != torch.float32 or noise.dim() != dims or noise.shape[0] != 1:
            raise ContractError(
                f"{name} noise is {noise.dtype} {tuple(noise.shape)}, must be fp32 [1, ...] of {dims} dims"
            )
    if resume is None:
        return video_noise, audio_noise, 0
    for name, noise, latents in (("video", video_noise, resume.video), ("audio", audio_noise, resume.audio)):
        if latents.shape != noise.shape:
            raise ContractError(f"sampler state has {name} {tuple(latents.shape)}, the clip {tuple(noise.shape)}")
    device = video_noise.device
    for solver, state in zip(solvers, (resume.video_solver, resume.audio_solver), strict=True):
        solver.load_state_dict({name: tensor.to(device) for name, tensor in state.items()})
        if solver.step_index != resume.step:
            raise ContractError(f"sampler state of step {resume.step} holds a solver at step {solver.step_index}")
    return resume.video.to(device), resume.audio.to(device), resume.step


def _last_velocities(resume: SamplerState | None, device: torch.device) -> tuple[Tensor, Tensor] | None:
    if resume is None or resume.velocities is None:
        return None
    video, audio = resume.velocities
    return video.to(device), audio.to(device)


def _check_velocity(name: str, velocity: Tensor, latents: Tensor, branches: int) -> None:
    if tuple(velocity.shape) != (branches, *latents.shape[1:]):
        raise ContractError(
            f"the model's {name} velocity is {tuple(velocity.shape)}, this step needs {(branches, *latents.shape[1:])}"
        )
