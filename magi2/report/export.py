"""A batch's report as a folder to share.

index.html     the page, for a browser; it needs no server
report.json    the same for scripts; the folder is known by it
clips.csv      a row for each clip
posters/, clips/    the pictures and, where they are copied, the clips, named by the clip's id
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from magi2.artifacts.recipe import sha256_file
from magi2.artifacts.store import LONGEST_LINK, ArtifactStore
from magi2.catalog.cost import BatchCost
from magi2.errors import CorruptedArtifactError, InputError
from magi2.files import disk_errors, partial_file
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.report.page import to_page
from magi2.report.shared import SharedClip, share
from magi2.report.tables import to_csv
from magi2.types import CLIP, POSTER, StageName

PAGE, JSON_FILE, CSV_FILE, POSTERS, CLIPS = "index.html", "report.json", "clips.csv", "posters", "clips"

ClipFiles = Literal["copy", "link", "none"]


@dataclass(frozen=True)
class Exported:
    """Where the page is, how many clips it shows, and the ids of those whose file could not be had."""

    page: Path
    clips: int
    missing: tuple[str, ...]


def export_report(
    store: ArtifactStore,
    batch_id: str,
    folder: Path,
    *,
    clips: ClipFiles,
    cost: BatchCost | None = None,
    made: Collection[tuple[str, StageName]] = (),
    thresholds: Thresholds = USUAL,
    failure_limit: int | None = None,
) -> Exported:
    """Write the batch's report to `folder`, or bring the one that is there up to date.

    `clips` says what becomes of the delivered files: copies, addresses in the store (which a bucket honours for
    `LONGEST_LINK`), or nothing; `cost`, `made` and `failure_limit` are what the catalog knows of the batch,
    `thresholds` those of defects.
    Raises: InputError for an unknown batch, for links to a server that has no address for browsers, or a folder that
    holds anything else or cannot be written to.
    """
    if clips == "link" and store.link_origin is None:
        raise InputError(
            f"--clips link: browsers have no way to the server of {store.url}",
            hint="take --clips copy, or add &public_endpoint=https://host to MAGI2_STORE",
        )
    shared = share(store, batch_id, cost, made, thresholds, failure_limit)
    _take(folder, batch_id)
    with_files = tuple(_with_files(clip, store, folder, clips) for clip in shared.clips)
    shared = replace(shared, clips=with_files)
    _remove_others(folder, with_files)
    content = json.dumps(shared.to_json(), ensure_ascii=False, indent=1, sort_keys=True)
    _write(folder / CSV_FILE, to_csv(shared))
    _write(folder / PAGE, to_page(shared))
    _write(folder / JSON_FILE, content + "\n")
    missing = (clip.reported.clip_id for clip in with_files if clip.missing)
    return Exported(folder / PAGE, len(with_files), tuple(each for each in missing if each))


def _take(folder: Path, batch_id: str) -> None:
    """Make the folder, or see that it is an earlier report of the same batch."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: is a file")
    if folder.is_dir() and any(folder.iterdir()) and _owner(folder) != batch_id:
        raise InputError(
            f"--out {folder}: is not empty and holds no report of batch {batch_id}", hint="name a new or empty folder"
        )
    with disk_errors(folder, InputError):
        for part in (folder, folder / POSTERS, folder / CLIPS):
            part.mkdir(parents=True, exist_ok=True)
    if _owner(folder) is None:  # first of all, so that an export that is cut short can be repeated
        _write(folder / JSON_FILE, json.dumps({"batch_id": batch_id}))


def _owner(folder: Path) -> str | None:
    """The batch whose report the folder holds."""
    try:
        content = json.loads((folder / JSON_FILE).read_text(encoding="utf-8"))
        owner = content.get("batch_id")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return owner if isinstance(owner, str) else None


def _with_files(clip: SharedClip, store: ArtifactStore, folder: Path, clips: ClipFiles) -> SharedClip:
    key, clip_id = clip.reported.key, clip.reported.clip_id
    if key is None or clip_id is None:
        return clip
    try:
        poster = _copy(store, key, POSTER, folder, f"{POSTERS}/{clip_id[:12]}.jpg")
        video = None
        if clips == "copy":
            video = _copy(store, key, CLIP, folder, f"{CLIPS}/{clip_id[:12]}.mp4")
        elif clips == "link":
            video = store.link(StageName.MUX, key, CLIP, expires=LONGEST_LINK)
        return replace(clip, poster=poster, video=video)
    except CorruptedArtifactError as error:
        return replace(clip, missing=f"its file could not be had: {error}")


def _copy(store: ArtifactStore, key: str, name: str, folder: Path, target_name: str) -> str:
    """Copy a payload unless an equal file is there; its name as seen from the page."""
    target = folder / target_name
    manifest = store.find(StageName.MUX, key)
    digest = manifest.payloads[name].sha256 if manifest and name in manifest.payloads else None
    if digest is None:
        raise CorruptedArtifactError(f"artifact mux/{key[:12]} is not in the store any more, or has no {name}")
    if not target.is_file() or target.is_symlink() or sha256_file(target) != digest:
        source = store.fetch(StageName.MUX, key, name)
        with partial_file(target, InputError) as partial:
            shutil.copyfile(source, partial)
    return target_name


def _remove_others(folder: Path, clips: Iterable[SharedClip]) -> None:
    """Take away pictures and clips of an earlier export that the page does not show."""
    shown = {address for clip in clips for address in (clip.poster, clip.video)}
    for place, suffix in ((POSTERS, "jpg"), (CLIPS, "mp4")):
        with disk_errors(folder, InputError):
            for path in (folder / place).glob(f"{'[0-9a-f]' * 12}.{suffix}"):
                if f"{place}/{path.name}" not in shown:
                    path.unlink()


def _write(target: Path, text: str) -> None:
    with partial_file(target, InputError) as partial:
        partial.write_text(text, encoding="utf-8", newline="")
