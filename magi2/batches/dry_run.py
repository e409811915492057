"""What a plan would do, before anything starts: for the command line, the page and the log of the plan task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.estimate import estimate_seconds
from magi2.batches.plan import BatchPlan
from magi2.config.price import Price, amount_text
from magi2.inputs.text import shown
from magi2.types import Clip

MOST_EQUAL = 10
"""Equal rows that are told one by one."""
PROMPT_CHARS = 60
"""Of a prompt, in a line for people."""


@dataclass(frozen=True)
class FirstClip:
    """One of the first clips, as it will be rendered: `where` is the line of its row, `files` are its names at targets,
    each with the target's name before it.
    """

    where: str
    clip: str
    name: str
    prompt: str
    seed: int
    profile: str
    files: tuple[str, ...]
    finished: bool


@dataclass(frozen=True)
class PlannedShard:
    """A shard that would be rendered."""

    shard: int
    profile: str
    clips: int


@dataclass(frozen=True)
class DryRun:
    """What a batch would do. `rows` are the clips that its rows ask for, `clips` the different ones of them, `cached`
    those that are finished; `refused` and `equal` tell of rows by their lines.

    `accelerator_seconds` are those still to spend, but for stages that were never measured here; the cost is None where
    no price is set.
    """

    rows: int
    clips: int
    repeats: int
    cached: int
    refused: tuple[str, ...]
    equal: tuple[str, ...]
    first: tuple[FirstClip, ...]
    shards: tuple[PlannedShard, ...]
    missing: dict[str, int]
    accelerator_seconds: float
    unmeasured_stages: tuple[str, ...]
    cost: float | None
    budget: float | None
    currency: str | None

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {**asdict(self), "equal": list(self.equal[:MOST_EQUAL])}

    def lines(self) -> Iterator[str]:
        """The same for people, what it costs last."""
        yield from (f"refused {row}" for row in self.refused)
        yield f"{self.clips} clips, {self.cached} finished already, {len(self.shards)} shards"
        yield from self.work_lines(with_prompts=True)

    def work_lines(self, *, with_prompts: bool = False) -> Iterator[str]:
        """Those of equal rows, of the first clips, and of what is to do; a log that others read has no prompts."""
        if self.repeats:
            yield f"  {self.repeats} rows repeat the prompt, image, seed and profile of others: each is their clip"
            yield from (f"    {row}" for row in self.equal[:MOST_EQUAL])
            if len(self.equal) > MOST_EQUAL:
                yield f"    and {len(self.equal) - MOST_EQUAL} more"
        yield from (f"  {stage:<10}{count} to do" for stage, count in self.missing.items())
        for first in self.first:
            state = "finished" if first.finished else "to render"
            prompt = shown(" ".join(first.prompt.split()))[:PROMPT_CHARS] if with_prompts else ""
            parts = (first.where, first.name, f"seed {first.seed}", first.profile, *first.files, state, prompt)
            yield "  " + ", ".join(filter(None, parts))
        rest = (
            f", not counting {', '.join(self.unmeasured_stages)}, never measured here" if self.unmeasured_stages else ""
        )
        yield f"about {self.accelerator_seconds:,.0f} accelerator-seconds{rest}"
        if self.cost is not None:
            yield f"about {amount_text(self.cost, self.currency or '')}{self._verdict}"

    @property
    def _verdict(self) -> str:
        is_over = self.budget is not None and self.cost is not None and self.cost > self.budget
        return ": more than the budget, shards that start after it is spent are skipped" if is_over else ""


def dry_run(plan: BatchPlan, store: ArtifactStore, *, price: Price | None = None) -> DryRun:
    """What `plan` would do with what `store` has; nothing is written. `price` is the deployment's."""
    estimate = estimate_seconds(plan, store)
    return DryRun(
        rows=plan.clips + plan.repeats,
        clips=plan.clips,
        repeats=plan.repeats,
        cached=len(plan.cached),
        refused=tuple(map(str, plan.refused)),
        equal=tuple(map(str, plan.equal)),
        first=tuple(_first(where, clip, plan) for where, clip in plan.first),
        shards=tuple(PlannedShard(each.number, each.profile.title, len(each.clips)) for each in plan.shards),
        missing=dict(plan.missing),
        accelerator_seconds=estimate.total_s,
        unmeasured_stages=estimate.unmeasured,
        cost=price.cost(estimate.total_s) if price else None,
        budget=plan.options.budget,
        currency=price.currency if price else None,
    )


def _first(where: str, clip: Clip, plan: BatchPlan) -> FirstClip:
    return FirstClip(
        where=where,
        clip=clip.clip_id,
        name=clip.names[0] if clip.names else clip.short_id,
        prompt=clip.prompt,
        seed=clip.seed,
        profile=clip.profile_name,
        files=tuple(f"{each.target}:{each.name}" for each in clip.deliveries),
        finished=clip.clip_id in plan.finished,
    )
