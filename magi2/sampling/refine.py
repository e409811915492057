"""The refiner's part of a clip: enlarge the preview's video latents, add noise, remove it in a few guided steps.

Source: MAGI-2 preview inference code, refiner sampling and its zero-terminal noise table.
"""

# Shapes: C channels, T latent frames, H x W latent cells. Video [1, C, T, H, W].

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.errors import ConfigError, ContractError
from magi2.sampling.unipc import FlowUniPC

NOISE_TABLE_SIZE = 1000
BETA_START, BETA_END = 0.00085, 0.012

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
ContextT = TypeVar("ContextT")


class RefinerVelocity(Protocol[ContextT_contra]):
    """Predicts the velocity [1, C, T, H, W] of latents of that shape under one prepared text."""

    def __call__(self, latents: Tensor, context: ContextT_contra, /) -> Tensor: ...


@runtime_checkable
class RefinerVelocityPair(Protocol[ContextT_contra]):
    """A model that predicts the velocities under the prompt and the negative prompt at one time, on ranks for each."""

    def velocity_pair(
        self, latents: Tensor, prompt_context: ContextT_contra, negative_context: ContextT_contra, /
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class RefinerState:
    """Everything between two steps: the latents after `step` steps and the solver's state."""

    latents: Tensor
    solver: Mapping[str, Tensor]
    step: int

    def tensors(self) -> dict[str, Tensor]:
        """A flat dict of contiguous tensors for one safetensors file; `from_tensors` reads it back."""
        flat = {"latents": self.latents, "step": torch.tensor(self.step)}
        flat |= {f"solver.{name}": tensor for name, tensor in self.solver.items()}
        return {name: tensor.contiguous() for name, tensor in flat.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> RefinerState:
        """The state that `tensors()` flattened. Raises ContractError naming a missing tensor."""
        missing = {"latents", "step"} - tensors.keys()
        if missing:
            raise ContractError(f"refiner state lacks {sorted(missing)[0]!r}")
        solver = {
            name.removeprefix("solver."): tensor for name, tensor in tensors.items() if name.startswith("solver.")
        }
        return cls(latents=tensors["latents"], solver=solver, step=int(tensors["step"]))


def upsample_latents(latents: Tensor, size: tuple[int, int]) -> Tensor:
    """Latents [1, C, 2T-1, H, W] fp32 of latents [1, C, T, h, w], trilinear with aligned corners; `size` is (H, W).

    Even frames are the given ones enlarged, odd frames the mean of their neighbours.
    Raises ContractError when the latents are not five-dimensional or the size is below 1.
    """
    if latents.dim() != 5 or min(size) < 1:
        raise ContractError(f"cannot enlarge latents of shape {tuple(latents.shape)} to {size}")
    frames = 2 * latents.shape[2] - 1
    return F.interpolate(latents.float(), size=(frames, *size), mode="trilinear", align_corners=True)


def noise_table() -> Tensor:
    """Signal coefficients [1000] fp32 of the variance-preserving noise schedule, from 0.99957 down to exactly 0."""
    roots = torch.linspace(math.sqrt(BETA_START), math.sqrt(BETA_END), NOISE_TABLE_SIZE, dtype=torch.float64)
    signal = (1 - roots.square()).cumprod(0).float().sqrt()
    return (signal - signal[-1]) * (signal[0] / (signal[0] - signal[-1]))


def add_refiner_noise(latents: Tensor, noise: Tensor, index: int = 220) -> Tensor:
    """`s * latents + sqrt(1 - s^2) * noise` with s the table's entry; index 0 gives the latents back.

    The published 220 means a signal of 0.839, although the steps after it start near pure noise: two schedules that
    do not match, and the model is meant to be run so.
    Raises ContractError when the shapes differ, ConfigError when the index is not in 0..999.
    """
    _check_noise_index(index)
    if latents.shape != noise.shape:
        raise ContractError(f"refiner noise is {tuple(noise.shape)}, the latents are {tuple(latents.shape)}")
    if index == 0:
        return latents
    signal = noise_table()[index]
    return signal * latents + (1 - signal.square()).sqrt() * noise


def denoise_refiner(
    model: RefinerVelocity[ContextT],
    latents: Tensor,
    noise: Tensor,
    prompt_context: ContextT,
    negative_context: ContextT,
    *,
    num_steps: int = 5,
    shift: float = 5.0,
    guidance_scale: float = 2.0,
    noise_index: int = 220,
    on_step: Callable[[int, int], None] | None = None,
    resume: RefinerState | None = None,
    snapshot_every: int = 0,
    on_snapshot: Callable[[RefinerState], None] | None = None,
) -> Tensor:
    """Refined video latents [1, C, T, H, W] fp32, from enlarged clean latents and standard normal noise of that shape.

    The noise is mixed in here, by `noise_index`. The contexts are what the model prepared for the prompt and for the
    negative prompt. `on_step(done, total)` is called when a step has been issued; on an accelerator it may still be
    computing. `on_snapshot` gets the state after every `snapshot_every`-th step but the last (0 = never); no later step
    writes to its tensors. `resume` continues from such a state and ends in the bits of an unbroken run; latents and
    noise then only say device and shape. Raises ContractError on latents, noise or a state that do not fit, ConfigError
    on steps, shift or a noise index out of range.
    """
    for name, tensor in (("latents", latents), ("noise", noise)):
        if tensor.dtype != torch.float32 or tensor.dim() != 5 or tensor.shape[0] != 1:
            raise ContractError(f"refiner {name}: {tensor.dtype} {tuple(tensor.shape)}, must be fp32 [1, C, T, H, W]")
    solver = FlowUniPC(num_steps, shift)
    with torch.no_grad():
        sample = add_refiner_noise(latents, noise, noise_index) if resume is None else _restore(solver, latents, resume)
        for done in range(solver.step_index + 1, num_steps + 1):
            conditional, unconditional = _velocities(model, sample, prompt_context, negative_context)
            sample = solver.step(unconditional + guidance_scale * (conditional - unconditional), sample)
            if on_snapshot and snapshot_every > 0 and done % snapshot_every == 0 and done < num_steps:
                on_snapshot(RefinerState(sample, solver.state_dict(), done))
            if on_step:
                on_step(done, num_steps)
    return sample


def _velocities(
    model: RefinerVelocity[ContextT], sample: Tensor, prompt_context: ContextT, negative_context: ContextT
) -> tuple[Tensor, Tensor]:
    if isinstance(model, RefinerVelocityPair):
        return model.velocity_pair(sample, prompt_context, negative_context)
    return model(sample, prompt_context), model(sample, negative_context)


def _restore(solver: FlowUniPC, latents: Tensor, state: RefinerState) -> Tensor:
    """The saved latents on the device of `latents`; the solver continues after the state's last step."""
    if state.latents.shape != latents.shape:
        raise ContractError(f"refiner state has latents {tuple(state.latents.shape)}, the clip {tuple(latents.shape)}")
    solver.load_state_dict({name: tensor.to(latents.device) for name, tensor in state.solver.items()})
    if solver.step_index != state.step:
        raise ContractError(f"refiner state of step {state.step} holds a solver at step {solver.step_index}")
    return state.latents.to(latents.device)


def _check_noise_index(index: int) -> None:
    if not 0 <= index < NOISE_TABLE_SIZE:
        raise ConfigError(f"refiner noise_index is {index}, must be from 0 to {NOISE_TABLE_SIZE - 1}")
