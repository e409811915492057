"""Flow UniPC: the second-order solver that turns a velocity prediction into the next latents.

Every coefficient is worked out on the host when the solver is built, as 0-dim fp32 tensors. A step multiplies latents
by them and reads nothing back, so it never makes the host wait for an accelerator.

Source: MAGI-2 preview inference code, flow UniPC scheduler ("bh2", data prediction, order 2, lower order at the end).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from magi2.errors import ConfigError, ContractError

NUM_TRAIN_TIMESTEPS = 1000
# The reference builds its training table with shift 1 in fp32, where the largest sigma is 0.999, not 1.
SIGMA_MAX = torch.tensor(1.0 - 1.0 / NUM_TRAIN_TIMESTEPS, dtype=torch.float32).item()


@dataclass(frozen=True)
class _Interval:
    """Coefficients of one interval of the sigma table; the predictor crosses it, the corrector crosses it again.

    Both compute `decay * sample - drive * estimate - drive * correction`.
    """

    decay: Tensor
    drive: Tensor
    ratio: Tensor | None  # divides the difference of the two older estimates; None at first order
    rho_older: Tensor  # corrector's weights of that difference and of the one towards the newest estimate
    rho_newest: Tensor


class FlowUniPC:
    """Steps latents from noise (sigma near 1) to the clean estimate (sigma 0) in `num_steps` calls of `step`.

    `timesteps` is int64 [N], truncated 1000 sigma: what the model is told. `sigmas` is fp32 [N+1], the last one 0.
    `step_index` counts finished steps. Steps are counted, not searched by timestep, so step counts whose truncated
    timesteps repeat (200 at shift 7) work too; the reference runs off its table there.
    Raises ConfigError when `num_steps` is not in 1..1000, or `shift` is not positive or so extreme that fp32 cannot
    tell the sigmas apart.
    """

    def __init__(self, num_steps: int, shift: float) -> None:
        if isinstance(num_steps, bool) or not isinstance(num_steps, int) or not 1 <= num_steps <= NUM_TRAIN_TIMESTEPS:
            raise ConfigError(f"num_steps is {num_steps!r}, must be an integer from 1 to {NUM_TRAIN_TIMESTEPS}")
        if not (math.isfinite(shift) and shift > 0):
            raise ConfigError(f"shift is {shift!r}, must be a finite number above 0")
        self.num_steps = num_steps
        self.timesteps, self.sigmas = _schedule(num_steps, shift)
        if self.sigmas[0] >= 1 or (self.sigmas.diff() >= 0).any():
            raise ConfigError(
                f"shift is {shift!r}: fp32 cannot tell the {num_steps} sigmas apart from each other and 1"
            )
        self._orders = [min(2, num_steps - i, i + 1) for i in range(num_steps)]
        lambdas = torch.log(1 - self.sigmas) - torch.log(self.sigmas)
        self._intervals = [_interval(self.sigmas, lambdas, i, order) for i, order in enumerate(self._orders)]
        self.step_index = 0
        self._estimates: list[Tensor] = []  # x0 estimates of the last two steps, older first
        self._corrected: Tensor | None = None  # the sample from which the last predictor started

    @property
    def corrected(self) -> Tensor | None:
        """The sample of the last step after the corrector, before the predictor; None before the first step."""
        return self._corrected

    def step(self, velocity: Tensor, sample: Tensor) -> Tensor:
        """The sample at the next sigma, same shape as `sample`; both inputs fp32 and of one shape.

        After the last step this is exactly the clean estimate. Raises ContractError when all steps are done.
        """
        index = self.step_index
        if index >= self.num_steps:
            raise ContractError(f"all {self.num_steps} steps are done, a further step has no sigma")
        estimate = sample - self.sigmas[index] * velocity
        if self._corrected is not None:
            # The corrector looks back over the interval that led here, with the order used to cross it.
            sample = _correct(self._intervals[index - 1], self._corrected, self._estimates, estimate)
        self._estimates = [*self._estimates[-1:], estimate]
        self._corrected = sample
        self.step_index = index + 1
        return _predict(self._intervals[index], sample, self._estimates)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a fresh solver of the same schedule needs to continue: a flat dict of tensors, not copies.

        `sigmas` fp32 [N+1], `step_index` and `order` (of the last predictor, 0 before the first) int64 scalars and,
        once they exist, `corrected`, `estimate` and `older_estimate` shaped like the sample.
        """
        order = self._orders[self.step_index - 1] if self.step_index else 0
        state = {"sigmas": self.sigmas, "step_index": torch.tensor(self.step_index), "order": torch.tensor(order)}
        if self._corrected is not None:
            state["corrected"] = self._corrected
        state.update(zip(("estimate", "older_estimate"), reversed(self._estimates), strict=False))
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()` of a solver with the same steps and shift; its tensors are used where they are.

        Raises ContractError when the state belongs to another schedule or is incomplete.
        """
        missing = {"sigmas", "step_index", "order"} - state.keys()
        if missing:
            raise ContractError(f"solver state lacks {sorted(missing)[0]!r}")
        if not torch.equal(state["sigmas"].cpu(), self.sigmas):
            steps = state["sigmas"].numel() - 1
            raise ContractError(f"solver state of another schedule: it has {steps} steps, this one {self.num_steps}")
        step_index, order = int(state["step_index"]), int(state["order"])
        if not 0 <= step_index <= self.num_steps or order != (self._orders[step_index - 1] if step_index else 0):
            raise ContractError(f"solver state is inconsistent: step {step_index} of {self.num_steps}, order {order}")
        names = ["corrected", "estimate", "older_estimate"][: step_index + 1] if step_index else []
        absent = [name for name in names if name not in state]
        if absent:
            raise ContractError(f"solver state after step {step_index} lacks {absent[0]!r}")
        self.step_index = step_index
        self._corrected = state["corrected"] if step_index else None
        self._estimates = [state[name] for name in reversed(names[1:])]


def _schedule(num_steps: int, shift: float) -> tuple[Tensor, Tensor]:
    # Python floats in this order of operations: the table is float64 until its last cast, as in the reference.
    spacing = (0.0 - SIGMA_MAX) / num_steps
    unshifted = [i * spacing + SIGMA_MAX for i in range(num_steps)]
    sigmas = [shift * u / (1 + (shift - 1) * u) for u in unshifted]
    timesteps = torch.tensor([int(sigma * NUM_TRAIN_TIMESTEPS) for sigma in sigmas], device="cpu")
    return timesteps, torch.tensor([*sigmas, 0.0], dtype=torch.float32, device="cpu")


def _interval(sigmas: Tensor, lambdas: Tensor, index: int, order: int) -> _Interval:
    h = lambdas[index + 1] - lambdas[index]
    phi = torch.expm1(-h)
    decay, drive = sigmas[index + 1] / sigmas[index], (1 - sigmas[index + 1]) * phi
    if order == 1:
        return _Interval(decay, drive, None, rho_older=torch.zeros_like(h), rho_newest=torch.full_like(h, 0.5))
    ratio = (lambdas[index - 1] - lambdas[index]) / h
    first = phi / -h - 1
    second = first / -h - 0.5
    one = torch.ones_like(ratio)
    matrix = torch.stack([torch.stack([one, one]), torch.stack([ratio, one])])
    rho = torch.linalg.solve(matrix, torch.stack([first / phi, second * 2 / phi]))
    return _Interval(decay, drive, ratio, rho_older=rho[0], rho_newest=rho[1])


def _predict(interval: _Interval, sample: Tensor, estimates: list[Tensor]) -> Tensor:
    base = interval.decay * sample - interval.drive * estimates[-1]
    if interval.ratio is None:
        return base
    older = (estimates[-2] - estimates[-1]) / interval.ratio
    return base - interval.drive * (0.5 * older)


def _correct(interval: _Interval, start: Tensor, estimates: list[Tensor], newest: Tensor) -> Tensor:
    base = interval.decay * start - interval.drive * estimates[-1]
    correction = interval.rho_newest * (newest - estimates[-1])
    if interval.ratio is not None:
        older = (estimates[-2] - estimates[-1]) / interval.ratio
        correction = interval.rho_older * older + correction
    return base - interval.drive * correction
