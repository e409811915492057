"""Which steps of the preview evaluate which guidance branches; torch-free, since profiles and recipes carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

from magi2.errors import ConfigError

FIRST_STEPS = 2
"""Steps that are always evaluated: the velocity turns most there, and a solver of second order needs two."""
REUSED_IN_A_ROW = 2
"""Steps in a row that may take over a velocity."""
GUIDED = 2
"""Branches that a guided step evaluates."""


@dataclass(frozen=True)
class Schedule:
    """Steps count from 0. Those from `guide_until_step` on do without the unconditional branch; None guides all.

    Steps in `reuse_steps` evaluate nothing: their solver step takes over the velocity of the step before. A schedule
    that no profile may have is found by `resolved`.
    """

    guide_until_step: int | None = None
    reuse_steps: tuple[int, ...] = ()

    def resolved(self, num_steps: int) -> Schedule | None:
        """The one schedule of those that evaluate the same for so many steps; None when it changes nothing.

        Raises ConfigError with the reason when no run of so many steps may go by it.
        """
        if reason := self.objection(num_steps):
            raise ConfigError(reason)
        guided = [step for step, branches in enumerate(self.branches(num_steps)) if branches == GUIDED]
        until = guided[-1] + 1 if guided else 0
        resolved = Schedule(None if until == num_steps else until, tuple(sorted(self.reuse_steps)))
        return None if resolved == Schedule() else resolved

    def objection(self, num_steps: int) -> str | None:
        """Why no run of `num_steps` steps may go by it; None when one may."""
        until, reused = self.guide_until_step, sorted(self.reuse_steps)
        if until is not None and not 0 <= until <= num_steps:
            return f"guide_until_step is {until}, must be from 0 (no guidance) to {num_steps}, the number of steps"
        for step in reused:
            if not 0 <= step < num_steps:
                return f"reuse_steps has {step}: of {num_steps} steps those from {FIRST_STEPS} to {num_steps - 1} may"
            if step == 0:
                return "reuse_steps has 0: before the first step there is no velocity to reuse"
            if step < FIRST_STEPS:
                return f"reuse_steps has {step}: the first {FIRST_STEPS} steps are always evaluated"
        for step, following in pairwise(reused):
            if step == following:
                return f"reuse_steps has {step} twice"
        for first, last in zip(reused, reused[REUSED_IN_A_ROW:], strict=False):
            if last - first == REUSED_IN_A_ROW:
                return f"reuse_steps has {first} to {last}: at most {REUSED_IN_A_ROW} steps in a row may reuse one"
        return None

    def branches(self, num_steps: int) -> tuple[int, ...]:
        """For each step, how many branches it evaluates: 2 guided, 1 not, 0 where the velocity is reused."""
        until = num_steps if self.guide_until_step is None else self.guide_until_step
        reused = frozenset(self.reuse_steps)
        return tuple(0 if step in reused else GUIDED if step < until else 1 for step in range(num_steps))

    def counts(self, num_steps: int) -> tuple[int, ...]:
        """The numbers of branches that steps evaluate, larger ones first, without 0."""
        return tuple(sorted(set(self.branches(num_steps)) - {0}, reverse=True))

    def evaluations(self, num_steps: int) -> int:
        """Branch evaluations of a run."""
        return sum(self.branches(num_steps))

    def position(self, done: int, num_steps: int) -> tuple[int, int]:
        """How far a run is after `done` steps, and how far it goes: in steps, or in evaluations where steps differ."""
        branches = self.branches(num_steps)
        return (done, num_steps) if len(set(branches)) == 1 else (sum(branches[:done]), sum(branches))

    def share(self, num_steps: int) -> float:
        """Its branch evaluations as a share of those of a run in which every step is guided and evaluated."""
        return self.evaluations(num_steps) / (GUIDED * num_steps)

    def to_json(self) -> dict[str, int | list[int] | None]:
        """Its fields, as recipes hold them."""
        return {**asdict(self), "reuse_steps": list(self.reuse_steps)}

    @classmethod
    def from_json(cls, content: Mapping[str, object] | None) -> Schedule:
        """What a recipe holds of one, which is nothing for the schedule that changes nothing."""
        if content is None:
            return EVERY_STEP
        return cls(content.get("guide_until_step"), tuple(content.get("reuse_steps", ())))  # type: ignore[arg-type]


EVERY_STEP = Schedule()
"""Every step guided and evaluated."""
