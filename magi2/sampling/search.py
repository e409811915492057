"""Looking for the schedule that moves a model's latents least for a share of its evaluations.

A run that evaluates everything tells, for every step, how far the velocity is from those of the steps before and from
the conditional one alone. What these would move the latents, added up, ranks schedules; true runs decide among the
best of them and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from magi2.sampling.guidance import Guidance
from magi2.sampling.preview import LayoutT, VelocityModel
from magi2.sampling.schedule import FIRST_STEPS, GUIDED, REUSED_IN_A_ROW, Schedule

GUIDANCE_ENDS = 16
"""Ends of guidance that are tried with the reused steps that suit each best."""
GAIN = 0.99
"""What a neighbour's error must come to, as a share of the best one's, to be taken for better."""


@dataclass(frozen=True)
class StepErrors:
    """What a step would move the latents, squared: without guidance, and with the velocity of one or two steps before.

    Relative to the velocity, in units of sigma; picture and sound are added.
    """

    unguided: float
    reused: tuple[float, ...]


def mean_errors(runs: Sequence[Sequence[StepErrors]]) -> list[StepErrors]:
    """Step by step, the mean over several runs."""
    return [
        StepErrors(
            sum(each.unguided for each in steps) / len(steps),
            tuple(sum(values) / len(steps) for values in zip(*(each.reused for each in steps), strict=True)),
        )
        for steps in zip(*runs, strict=True)
    ]


@dataclass
class Watched:
    """A velocity model that notes, in a run that guides and evaluates every step, what its velocities do."""

    model: VelocityModel[LayoutT]  # type: ignore[valid-type]
    guide: Guidance
    sigmas: Tensor
    errors: list[StepErrors] = field(default_factory=list)
    _last: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: LayoutT) -> tuple[Tensor, Tensor]:
        pairs = self.model(video, audio, timestep, layout)
        guided = self.guide.both(*pairs, video, audio, int(timestep))
        step = len(self.errors)
        width = float(self.sigmas[step] - self.sigmas[step + 1])
        unguided = _distance((pairs[0][:1], pairs[1][:1]), guided)
        # A step that has no such step before it may not reuse one either.
        reused = [_distance(before, guided) for before in reversed(self._last)] + [0.0] * REUSED_IN_A_ROW
        self.errors.append(StepErrors(width**2 * unguided, tuple(width**2 * each for each in reused[:REUSED_IN_A_ROW])))
        self._last = [*self._last, guided][-REUSED_IN_A_ROW:]
        return pairs


def _distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """Squared relative distance of picture and of sound, added."""
    return sum(
        float((mine - theirs).square().sum() / theirs.square().sum().clamp_min(1e-12))
        for mine, theirs in zip(one, other, strict=True)
    )


@dataclass(frozen=True)
class Trial:
    """A schedule that was run, and the error that this gave."""

    schedule: Schedule
    error: float


def find_schedule(
    measure: Callable[[Schedule], float], errors: Sequence[StepErrors], *, evaluations: int, trials: int
) -> list[Trial]:
    """What was tried, the best first: the likeliest schedules of at most so many evaluations, then their neighbours.

    `measure` runs a schedule and says how far its latents are from those of every evaluation; `errors` are those of
    every step. Half of the `trials` go to the likeliest. No trial: no schedule makes do with so few evaluations.
    """
    likely = sorted(_likely(errors, evaluations), key=lambda schedule: predicted(schedule, errors))
    tried = {schedule: measure(schedule) for schedule in islice(likely, max(1, trials // 2))}
    while tried and len(tried) < trials:
        best = min(tried, key=lambda schedule: tried[schedule])
        near = [each for each in dict.fromkeys(_neighbours(best, len(errors), evaluations)) if each not in tried]
        for schedule in sorted(near, key=lambda each: predicted(each, errors))[: trials - len(tried)]:
            tried[schedule] = measure(schedule)
            if tried[schedule] < GAIN * tried[best]:
                break
        else:
            break
    return sorted((Trial(*each) for each in tried.items()), key=lambda trial: trial.error)


def predicted(schedule: Schedule, errors: Sequence[StepErrors]) -> float:
    """The errors of its steps, added up."""
    total, run, last = 0.0, 0, 0.0
    for step, branches in enumerate(schedule.branches(len(errors))):
        run = 0 if branches else run + 1
        if branches:
            last = 0.0 if branches == GUIDED else errors[step].unguided
        total += errors[step].reused[run - 1] + last if run else last
    return total


def _likely(errors: Sequence[StepErrors], evaluations: int) -> Iterator[Schedule]:
    """For ends of guidance over the whole run, the best reused steps by what is predicted."""
    steps = len(errors)
    ends = sorted({round(steps * part / GUIDANCE_ENDS) for part in range(GUIDANCE_ENDS + 1)})
    for end in ends:
        reused = _best_reused(errors, end, evaluations)
        if reused is not None:
            yield Schedule(end, reused).resolved(steps) or Schedule()


def _best_reused(errors: Sequence[StepErrors], end: int, evaluations: int) -> tuple[int, ...] | None:
    """The steps to reuse of least predicted error under an end of guidance; None when that is not enough."""
    # By steps reused in a row and evaluations spent: the least error, that of the velocity in use, the steps reused.
    best: dict[tuple[int, int], tuple[float, float, tuple[int, ...]]] = {(0, 0): (0.0, 0.0, ())}
    for step, of_step in enumerate(errors):
        following: dict[tuple[int, int], tuple[float, float, tuple[int, ...]]] = {}
        own = 0.0 if step < end else of_step.unguided
        cost = GUIDED if step < end else 1
        for (run, spent), (error, last, reused) in best.items():
            options = [((0, spent + cost), (error + own, own, reused))]
            if step >= FIRST_STEPS and run < REUSED_IN_A_ROW:
                moved = error + of_step.reused[run] + last
                options.append(((run + 1, spent), (moved, last, (*reused, step))))
            for state, value in options:
                if state[1] <= evaluations and (state not in following or value < following[state]):
                    following[state] = value
        best = following
    return min(best.values())[2] if best else None


def _neighbours(schedule: Schedule, steps: int, evaluations: int) -> Iterator[Schedule]:
    """Schedules one move away: a reused step earlier, later, more or less, guidance that ends earlier or later."""
    reused = set(schedule.reuse_steps)
    end = steps if schedule.guide_until_step is None else schedule.guide_until_step
    sets = [reused, *(reused - {step} for step in reused), *(reused | {step} for step in range(FIRST_STEPS, steps))]
    sets += [reused - {step} | {step + move} for step in reused for move in (-1, 1)]
    for steps_reused in sets:
        for other_end in (end, end - 1, end + 1, end - 2, end + 2):
            near = Schedule(other_end, tuple(sorted(steps_reused)))
            if near.objection(steps) is None and near.evaluations(steps) <= evaluations:
                yield near.resolved(steps) or Schedule()


def relative_l2(latents: Tensor, reference: Tensor) -> float:
    """The norm of the difference, as a share of the reference's."""
    return float((latents - reference).norm() / reference.norm())


def cosine(latents: Tensor, reference: Tensor) -> float:
    """The cosine between two latents as vectors."""
    return float(torch.nn.functional.cosine_similarity(latents.flatten().double(), reference.flatten().double(), dim=0))
