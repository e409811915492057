"""The clips of a finished batch as files that a person recognises, one picture of them all, and what they show."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from demo_world.judge import judge_clip
from demo_world.reading import read_caption
from magi2.artifacts.store import ArtifactStore
from magi2.batches.rerun import batch_clips
from magi2.batches.schema import BatchDocument, ReportedClip
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.errors import InputError, MediaError
from magi2.files import partial_file
from magi2.media.reading import count_frames, read_frames
from magi2.recipes.load import recipe_book
from magi2.recipes.lookup import StoredClip
from magi2.types import CLIP, StageName

NAME_LENGTH = 48
FRAMES, CELL_WIDTH, MARGIN, LABEL_HEIGHT = 6, 240, 4, 22


@dataclass(frozen=True)
class ExportedClip:
    """A delivered file, the name of its row and the prompt that it was made from."""

    file: Path
    name: str
    prompt: str


def finished_clips(store: ArtifactStore, batch: BatchDocument, settings: Settings) -> list[ReportedClip]:
    """What a report would say of the finished clips of a batch whose run has not come to a report.

    The store is asked clip by clip: a stage tells its results only when all of its clips are through.
    """
    weights = CheckpointFolder(settings.checkpoint_root())
    books = {digest: recipe_book(batch.profile(digest), settings, weights) for digest in batch.profiles}
    return [
        ReportedClip(clip_id=clip.clip_id, names=clip.names, key=delivered.key)
        for clip in batch_clips(store, batch.batch_id)
        if (delivered := StoredClip(store, books[clip.profile_digest], clip).manifest(StageName.MUX))
    ]


def export_clips(
    store: ArtifactStore, batch_id: str, finished: Sequence[ReportedClip], folder: Path
) -> list[ExportedClip]:
    """Copies of a batch's finished clips in `folder`, by file name: the row's name made safe and the clip's id."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = {clip.clip_id: clip.prompt for clip in batch_clips(store, batch_id)}
    exported = []
    for clip in finished:
        name, clip_id = clip.names[0], clip.clip_id or ""
        target = folder / f"{safe_name(name)}-{clip_id[:8]}.mp4"
        with partial_file(target) as partial:
            shutil.copyfile(store.fetch(StageName.MUX, clip.key or "", CLIP), partial)
        exported.append(ExportedClip(target, name, prompts[clip_id]))
    return sorted(exported, key=lambda clip: clip.file.name)


def safe_name(name: str) -> str:
    """`name` as part of a file's name: its letters and digits in any script, a hyphen for whatever is between them."""
    words = re.sub(r"[\W_]+", "-", unicodedata.normalize("NFC", name)).strip("-")
    return words[:NAME_LENGTH].rstrip("-") or "clip"


def write_sheet(clips: Sequence[ExportedClip], target: Path) -> None:
    """Save one PNG: a row for each clip, its name above six evenly spaced frames.

    Raises: MediaError when a clip cannot be read or the picture cannot be written.
    """
    strips = [_strip(clip) for clip in clips]
    sheet = Image.new("RGB", (strips[0].width, sum(strip.height for strip in strips)))
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height
    with partial_file(target, MediaError) as partial:
        sheet.save(partial, format="PNG", optimize=True)


def _strip(clip: ExportedClip) -> Image.Image:
    count = count_frames(clip.file)
    wanted = frozenset((2 * part + 1) * count // (2 * FRAMES) for part in range(FRAMES))
    images = [Image.fromarray(frame.numpy()) for frame in read_frames(clip.file, indices=wanted)]
    height = round(images[0].height * CELL_WIDTH / images[0].width)
    strip = Image.new("RGB", (FRAMES * (CELL_WIDTH + MARGIN) + MARGIN, LABEL_HEIGHT + height + MARGIN))
    ImageDraw.Draw(strip).text((MARGIN, MARGIN), clip.name, fill="white", font=ImageFont.load_default(14))
    for position, image in enumerate(images):
        strip.paste(image.resize((CELL_WIDTH, height)), (MARGIN + position * (CELL_WIDTH + MARGIN), LABEL_HEIGHT))
    return strip


def judgement(clip: ExportedClip) -> str | None:
    """What the clip shows and sounds like, measured and held against its prompt; None for one outside the demo's words.

    Raises: MediaError when picture or sound cannot be read.
    """
    try:
        asked = read_caption(clip.prompt)
    except InputError:
        return None
    verdict = judge_clip(clip.file, asked)
    found = ", ".join(f"{measure} {value}" for measure, value in vars(verdict.measured).items())
    return f"as asked: {found}" if verdict.is_right else f"NOT as asked in {', '.join(verdict.wrong)}: {found}"
