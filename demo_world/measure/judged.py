"""Making wanted clips by the product's own path and judging what it delivers; verdicts are kept in the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from demo_world import judge
from demo_world.judge.verdict import Measured, Verdict, judge_clip
from demo_world.measure.wanted import Wanted
from demo_world.reading import Request
from magi2.artifacts.recipe import canonical_json, sha256_text
from magi2.artifacts.store import ArtifactStore
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import CorruptedArtifactError
from magi2.jobs.render import ClipRender
from magi2.stages.progress import Silent
from magi2.stages.render import Outcome
from magi2.types import CLIP, CONTACT_SHEET, Clip, StageName


@dataclass(frozen=True)
class Work:
    """Where clips are made: a deployment's settings, and the profiles by digest, in the order of their turns."""

    settings: Settings
    profiles: Mapping[str, Profile]


@dataclass(frozen=True)
class Judged:
    """A wanted clip with its verdict and files, or with the error that left none; the seconds that each stage took."""

    wanted: Wanted
    verdict: Verdict | None
    error: str | None
    seconds: Mapping[str, float]
    clip: Path | None = None
    contact_sheet: Path | None = None

    @property
    def is_right(self) -> bool:
        """Whether the clip was made and everything about it is right."""
        return self.verdict is not None and self.verdict.is_right


Job = tuple[Clip, tuple[Wanted, ...]]
"""A clip, and everything that wants it: equal rows are one clip."""


def make_and_judge(jobs: Sequence[Job], work: Work) -> list[Judged]:
    """Every clip rendered, unless it is in the store, and judged. Raises: what ends a run of the product."""
    wanted = {clip.clip_id: of_clip for clip, of_clip in jobs}
    judged = []
    for store, outcome in _rendered([clip for clip, _ in jobs], work):
        judged += [_judge(store, outcome, one) for one in wanted[outcome.clip.clip_id]]
    return judged


def _rendered(clips: Sequence[Clip], work: Work) -> Iterator[tuple[ArtifactStore, Outcome]]:
    """The clips of each profile in turn: what two of them share is made for the first and found by the second."""
    deployment = Deployment(work.settings)
    for outcome in ClipRender(clips, work.profiles, deployment, name="measure", progress=Silent()).render():
        yield deployment.store, outcome


def _judge(store: ArtifactStore, outcome: Outcome, wanted: Wanted) -> Judged:
    found = {result.stage: store.find(result.stage, result.key) for result in outcome.results if result.key}
    seconds = {stage.value: manifest.timings["make_s"] for stage, manifest in found.items() if manifest is not None}
    if outcome.failure is not None:
        return Judged(wanted, None, f"{outcome.failure.stage.value}: {outcome.failure.error}", seconds)
    key = outcome.results[-1].key or ""
    clip, sheet = (store.fetch(StageName.MUX, key, name) for name in (CLIP, CONTACT_SHEET))
    return Judged(wanted, kept_verdict(store, key, wanted.asked), None, seconds, clip, sheet)


def kept_verdict(store: ArtifactStore, key: str, asked: Request) -> Verdict:
    """The verdict on a delivered clip; judged anew only when clip, question or judge are others than before.

    Raises: CorruptedArtifactError when the clip is not in the store, or damaged.
    """
    manifest = store.find(StageName.MUX, key)
    if manifest is None:
        raise CorruptedArtifactError(f"artifact mux/{key}: is gone")
    question = {"clip": manifest.payloads[CLIP].sha256, "asked": asdict(asked), "judge": _judge_digest()}
    name = f"verdicts/{sha256_text(canonical_json(question))}.json"
    if (document := store.get_document(name)) is not None:
        kept = json.loads(document)
        return Verdict(kept["passed"], Measured(**kept["measured"]), tuple(kept["offsets"]))
    verdict = judge_clip(store.fetch(StageName.MUX, key, CLIP), asked)
    store.put_document(name, json.dumps(asdict(verdict)).encode())
    return verdict


@cache
def _judge_digest() -> str:
    """Of the judge's code."""
    sources = sorted(Path(judge.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
