"""A planned batch of tiny clips, and a stage that is computed without models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.batch_file import Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import Magi2Error, OutOfMemoryError
from magi2.jobs.run import OnEvent, StageWork
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished
from magi2.runtime.job import StageJob
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip, small_profile

WEIGHTS = dict.fromkeys(("text_encoder", "preview", "refiner", "video_vae", "turbo_vae", "audio_vae"), "0" * 64)
PROFILE = small_profile()
BOOK = RecipeBook(PROFILE, fingerprints=WEIGHTS, negative_prompt=None, enhancement_mode="off", enhancement_model=None)
CLIPS = [make_clip(PROFILE, f"a kite over dune {seed}", seed) for seed in range(3)]


class SampleDeployment(Deployment):
    """A deployment on disk whose folder of weights is empty."""

    def __init__(self, folder: Path) -> None:
        weights = folder / "weights"
        weights.mkdir(exist_ok=True)
        super().__init__(Settings(store=str(folder / "store"), ckpt_root=weights))

    def recipe_book(self, profile: Profile) -> RecipeBook:
        return BOOK


def planned(store: LocalStore, clips: Sequence[Clip] = CLIPS, **options: object) -> BatchPlan:
    """A saved plan of these clips in one shard."""
    plan = plan_batch(
        Batch(tuple(clips), ()),
        name="night",
        source="night.jsonl",
        store=store,
        book_of=lambda digest: BOOK,
        options=BatchOptions(**options),  # type: ignore[arg-type]
    )
    save_plan(plan, store)
    return plan


def work_of(plan: BatchPlan, store: LocalStore, stage: StageName, *, force: bool = False) -> StageWork:
    """The plan's only shard at a stage."""
    return StageWork.planned(StageJob(plan.batch_id, 0, stage, store.url, force=force), store)


@dataclass
class Computer:
    """A `Compute` that publishes a file for each clip but one, which fails; or ends with an error."""

    store: LocalStore
    failing_seed: int | None = None
    error: Magi2Error | None = None
    asked: list[tuple[StageName, list[int]]] = field(default_factory=list)

    def __call__(self, work: StageWork, on_event: OnEvent) -> list[StageResult]:
        stage = work.job.stage
        self.asked.append((stage, [clip.seed for clip in work.clips]))
        if self.error:
            raise self.error
        results = [self._result(stage, clip) for clip in work.clips]
        for result in results:
            code = result.error.code if result.error else None
            on_event(ClipFinished(result.clip.clip_id, result.state, result.key, 1.0, (), code, code and "too little"))
        job = work.job
        write_results(self.store, job.batch_id, job.shard, job.stage, job.attempt, results)
        return results

    def _result(self, stage: StageName, clip: Clip) -> StageResult:
        if clip.seed == self.failing_seed:
            return StageResult(stage, clip, "failed", 1.0, error=OutOfMemoryError("too little"))
        return StageResult(stage, clip, "made", 1.0, make(self.store, stage, clip))


def make(store: LocalStore, stage: StageName, clip: Clip) -> str:
    """Publish something as the clip's artifact of a stage; its key."""
    recipe = BOOK.enhance(clip) if stage is StageName.ENHANCE else BOOK.chain(clip, clip.prompt)[stage]
    caption = Caption(clip.prompt, mode_requested="off", mode_used="off")
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / CAPTION).write_bytes(caption.to_json())
        return store.publish(ManifestDraft(recipe), {CAPTION: folder / CAPTION}).key
