"""A deployment with a folder to deliver to, and clips that are rendered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.batch_file import Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.delivery.targets import Targets
from magi2.jobs.deliver import deliver_clips
from magi2.jobs.recorder import CatalogRecorder
from magi2.jobs.run import OnEvent, StageWork, run_stage_job
from magi2.prompts.caption import Caption
from magi2.recipes.captions import CAPTION
from magi2.recipes.result import StageResult
from magi2.runtime.job import StageJob
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, Delivery, StageName
from tests.jobs.job_samples import BOOK, CLIPS, SampleDeployment

A_CLIP, B_CLIP = (replace(clip, deliveries=(Delivery("studio", f"night/{clip.seed}.mp4"),)) for clip in CLIPS[:2])


class Studio(SampleDeployment):
    """A deployment with a folder as its target."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder / "studio"
        self.folder.mkdir()
        targets = json.dumps({"studio": str(self.folder)})
        self.settings = replace(self.settings, delivery_targets=targets)

    def planned(self, clips: Sequence[Clip], clips_per_shard: int = 16) -> BatchPlan:
        plan = plan_batch(
            Batch(tuple(clips), ()),
            name="night",
            source="night.jsonl",
            store=self.store,
            book_of=lambda digest: BOOK,
            options=BatchOptions(),
            clips_per_shard=clips_per_shard,
        )
        save_plan(plan, self.store)
        return plan

    def job(self, plan: BatchPlan, stage: StageName, shard: int = 0, **options: object) -> StageWork:
        job = StageJob(plan.batch_id, shard, stage, self.settings.store, **options)  # type: ignore[arg-type]
        return StageWork.planned(job, self.store)

    def deliver(
        self, plan: BatchPlan, shard: int = 0, recorder: CatalogRecorder | None = None, **options: object
    ) -> list[StageResult]:
        """The deliver stage of a shard, by itself."""

        def compute(work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
            targets = Targets.of(self.settings)
            return deliver_clips(work, on_event, deployment=self, targets=targets, check=lambda: None)

        work = self.job(plan, StageName.DELIVER, shard, **options)
        return list(run_stage_job(work, self, compute, recorder=recorder))

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}


def publish(store: LocalStore, clip: Clip, *, data: dict[str, object] | None = None) -> str:
    """A clip that is rendered: caption and file; the file's key."""
    caption = Caption(clip.prompt, data=data, mode_requested="off", mode_used="off")
    enhance = BOOK.enhance(clip)
    with store.stage_folder(StageName.ENHANCE, enhance.key) as folder:
        (folder / CAPTION).write_bytes(caption.to_json())
        store.publish(ManifestDraft(enhance), {CAPTION: folder / CAPTION})
    recipe = BOOK.chain(clip, clip.prompt)[StageName.MUX]
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        names = (CLIP, POSTER, CONTACT_SHEET, "probe.json")
        for name in names:
            (folder / name).write_text(f"{name} of {clip.seed}")
        return store.publish(ManifestDraft(recipe), {name: folder / name for name in names}).key


def states(results: Sequence[StageResult]) -> list[str]:
    return [result.state for result in results]
