"""Addresses in answers: of our own files, and of pages of Airflow's UI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Request

from magi2.types import CLIP, CONTACT_SHEET, POSTER, THUMBNAIL, StageName
from magi2_airflow.mount import MOUNT
from magi2_airflow.renders.contract import Media


@dataclass(frozen=True)
class Links:
    """Absolute paths below `root`, where this app is mounted; ids and keys need no quoting."""

    root: str

    def media(self, key: str | None) -> Media | None:
        """The files of a delivered clip, None for a clip that has none."""
        if key is None:
            return None
        folder = f"{self.root}/media/{key}"
        return Media(
            clip=f"{folder}/{CLIP}",
            poster=f"{folder}/{POSTER}",
            thumbnail=f"{folder}/{THUMBNAIL}",
            contact_sheet=f"{folder}/{CONTACT_SHEET}",
            download=f"{folder}/{CLIP}?download=1",
        )

    def image(self, batch_id: str, clip_id: str, number: int) -> str:
        """A reference image of a clip."""
        return f"{self.root}/images/{batch_id}/{clip_id}/{number}"

    def picture(self, batch_id: str, clip_id: str, step: int) -> str:
        """What a clip at work looks like after this step, or at the last snapshot before it."""
        return f"{self.root}/pictures/{batch_id}/{clip_id}?step={step}"

    def airflow(self, path: str) -> str:
        """A page of Airflow's UI, which this app is mounted beside."""
        return self.root.removesuffix(MOUNT) + path

    def manifest(self, batch_id: str, clip_id: str, stage: str) -> str:
        """The manifest of what a stage made of a clip."""
        return f"{self.root}/api/batches/{batch_id}/clips/{clip_id}/manifests/{stage}"


def links_of(request: Request) -> Links:
    """The links of this request's app, wherever it is mounted."""
    return Links(request.scope.get("root_path", ""))


Root = Annotated[Links, Depends(links_of)]


def run_path(dag_id: str | None, run_id: str | None) -> str | None:
    """The page of a run in Airflow's UI."""
    if not dag_id or not run_id:
        return None
    return f"/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def task_path(run: str | None, stage: StageName, shard: int | None) -> str | None:
    """The page of the task that runs a stage of a shard."""
    return None if run is None or shard is None else f"{run}/tasks/shard.{stage.value}/mapped/{shard}"
