"""A small store with everything that the product keeps: artifacts of all stages, a batch's documents, an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import JSON, Recipe, sha256_file
from magi2.artifacts.removals import note_removals
from magi2.artifacts.tensors import TensorSpec, save_tensors, seal_tensors
from magi2.batches.batch_file import BadRow, Batch
from magi2.batches.failures import save_failure
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.result import StageResult
from magi2.report.build import build_report, save_report
from magi2.stages.contracts import ANY, CAPTION_FILE, PAYLOADS, PROBE, TENSORS, contract_of
from magi2.stages.snapshots import snapshot_name
from magi2.types import Clip, FigureImage, StageName

SMALL = ("preview.steps=1", "preview.width=64", "preview.height=32")
SMALL_REFINED = (*SMALL, "refiner.steps=1", "refiner.width=80", "refiner.height=32")
WEIGHTS = dict.fromkeys(("text_encoder", "preview", "refiner", "video_vae", "turbo_vae", "audio_vae"), "0" * 64)
STREAM = torch.arange(16, dtype=torch.uint8)
"""Where the random stream of a snapshot stands."""


class Sample:
    """The store in a folder: two clips delivered, one of them from an image, one rendered, one that failed."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self.profile: Profile = load_profile("tiny", Settings().configs, SMALL_REFINED)
        self.book = RecipeBook(
            self.profile,
            fingerprints=WEIGHTS,
            negative_prompt="blurred",
            enhancement_mode="off",
            enhancement_model=None,
        )
        self._generator = torch.Generator().manual_seed(7)
        self._folder = folder
        self.clips = [self._clip(number) for number in range(4)]
        self.clips[1] = replace(self.clips[1], prompt="<Figure 1> turns", figures=(self._figure(),))
        self._fill()

    @property
    def batch_ids(self) -> list[str]:
        """The batches in the store."""
        return [plan.batch_id for plan in self.plans]

    def _fill(self) -> None:
        for clip in self.clips[:2]:
            for recipe in (self.book.enhance(clip), *self.book.chain(clip, clip.prompt).values()):
                self._publish(recipe, clip)
        assert self.book.negative is not None
        self._publish(self.book.negative, self.clips[0])
        self.plans = [self._plan("night", self.clips), self._plan("day", self.clips[2:])]
        for plan in self.plans:
            self._tell(plan)
        note_removals(self.store, StageName.MUX, ["c" * 64, "d" * 64], datetime(2031, 2, 3, tzinfo=UTC))
        recipe = self.book.chain(self.clips[3], self.clips[3].prompt)[StageName.PREVIEW]
        tensors = {"step": torch.tensor(20), "video": self._tensor((1, 4, 8)), "generator_state": STREAM}
        metadata = {"format": "1", "recipe": recipe.key, "layout": "sp1"}
        self.store.put_document(snapshot_name(recipe), seal_tensors(tensors, metadata))

    def _clip(self, number: int) -> Clip:
        digest = self.profile.digest()
        return Clip(f"a kite over dune {number}", number, self.profile.name, digest, names=(f"row {number}",))

    def _figure(self) -> FigureImage:
        path = self._folder / "boat.png"
        Image.effect_noise((48, 32), 60).save(path)
        return FigureImage(1, path, sha256_file(path))

    def _plan(self, name: str, clips: list[Clip]) -> BatchPlan:
        plan = plan_batch(
            Batch(tuple(clips), (BadRow(9, "the prompt is empty"),)),
            name=name,
            source=f"{name}.jsonl",
            store=self.store,
            book_of=lambda digest: self.book,
            options=BatchOptions(failure_limit=2, on_bad_rows="skip"),
            clips_per_shard=1,
        )
        save_plan(plan, self.store)
        return plan

    def _tell(self, plan: BatchPlan) -> None:
        """Results of a first and of a second attempt, a failure and a report."""
        error = InfrastructureError("the disk is full")
        for shard in plan.shards:
            for attempt, stage in enumerate((StageName.ENHANCE, StageName.ENCODE), start=1):
                results = [StageResult(stage, clip, "made", 1.5, "a" * 64, ("flagged",)) for clip in shard.clips]
                write_results(self.store, plan.batch_id, shard.number, stage, attempt, results)
            save_failure(self.store, plan.batch_id, shard.number, StageName.PREVIEW, error)
        save_report(build_report(self.store, plan.batch_id), self.store)

    def _publish(self, recipe: Recipe, clip: Clip) -> None:
        with self.store.stage_folder(recipe.stage, recipe.key) as folder:
            for name in sorted(PAYLOADS[recipe.stage]):
                self._write(folder / name, recipe, clip)
            report: dict[str, JSON] = {"generator_device": "cpu", "frames": 249}
            draft = ManifestDraft(recipe, timings={"make_s": 1.5}, flags=("frozen",), report=report)
            self.store.publish(draft, {path.name: path for path in folder.iterdir()})

    def _write(self, path: Path, recipe: Recipe, clip: Clip) -> None:
        contract = contract_of(recipe, self.profile)
        if path.name == CAPTION_FILE:
            path.write_bytes(Caption(clip.prompt).to_json())
        elif path.name == TENSORS and contract is not None:
            save_tensors(path, self._tensors(contract))
        elif path.name == PROBE:
            path.write_text(json.dumps({"frames": 249, "streams": [{"codec": "h264"}]}, indent=1))
        else:
            path.write_bytes(bytes(torch.randint(256, (1500,), generator=self._generator).tolist()))

    def _tensors(self, contract: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        found = {}
        for name, spec in contract.items():
            shape = tuple(2 if size == ANY else size for size in spec.shape)
            found[name] = self._tensor(shape).to(getattr(torch, spec.dtype))
        return found

    def _tensor(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self._generator)
