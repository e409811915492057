"""Operators outside Airflow: a deployment in a temporary folder and the little of a task's context that they use."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.documents import load_batch
from magi2.batches.plan import load_shard
from magi2.batches.results import write_results
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.engine import catalog_url
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION
from magi2.recipes.load import recipe_book
from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName


@dataclass
class Deployment:
    """Weights that only have names, a store, an inbox and a folder of batch files; `MAGI2_*` point at them."""

    folder: Path
    store: LocalStore
    inbox: Path

    def batch(self, *rows: dict[str, Any] | str, name: str = "night.jsonl") -> Path:
        path = self.folder / "batches" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    def catalog(self) -> Catalog:
        return open_catalog(catalog_url(Settings.from_environment()))

    def deliver(self, batch_id: str) -> None:
        """Leave what the stages leave when every clip of a batch is rendered."""
        settings = Settings.from_environment()
        weights = CheckpointFolder(settings.checkpoint_root())
        for number in range(load_batch(self.store, batch_id).shards):
            shard = load_shard(self.store, batch_id, number, self.folder)
            book = recipe_book(shard.profile, settings, weights)
            for stage in shard.profile.stages:
                results = [StageResult(stage, clip, "made", 1.0, self._made(book, clip, stage)) for clip in shard.clips]
                write_results(self.store, batch_id, number, stage, 1, results)

    def _made(self, book: RecipeBook, clip: Clip, stage: StageName) -> str:
        recipe = book.enhance(clip) if stage is StageName.ENHANCE else book.chain(clip, clip.prompt)[stage]
        name = CAPTION if stage is StageName.ENHANCE else "payload"
        caption = Caption(clip.prompt, mode_requested="off", mode_used="off")
        path = self.folder / name
        path.write_bytes(caption.to_json())
        return self.store.publish(ManifestDraft(recipe), {name: path}).key

    def document(self, name: str) -> Any:
        return json.loads(self.store.get_document(name) or b"null")


@dataclass
class Task:
    """What an operator sees of its task instance and run."""

    try_number: int = 1
    max_tries: int = 0
    map_index: int = 0
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    dag_id: str = "magi2_render_batch"
    task_id: str = "shard.preview"
    xcom: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.xcom[key] = value

    def context(self) -> dict[str, Any]:
        run = SimpleNamespace(
            dag_id=self.dag_id, run_id=self.run_id, triggering_user_name="ann", start_date=datetime.now(UTC)
        )
        return {"ti": self, "dag_run": run, "outlet_events": defaultdict(SimpleNamespace)}
