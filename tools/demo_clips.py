"""The clips of a batch where a person looks for them, one picture of them all, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageDraw, ImageFont

from demo_world.judge import judge_clip
from demo_world.reading import read_caption
from magi2.artifacts.store import ArtifactStore
from magi2.batches.receipts import final_places
from magi2.batches.rerun import batch_clips
from magi2.batches.schema import BatchDocument
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.delivery.deliver import ClipDelivery
from magi2.delivery.targets import Targets
from magi2.errors import InputError, MediaError
from magi2.files import partial_file
from magi2.media.reading import count_frames, read_frames
from magi2.recipes.load import recipe_book
from magi2.recipes.lookup import StoredClip
from magi2.types import StageName

FRAMES, CELL_WIDTH, MARGIN, LABEL_HEIGHT = 6, 240, 4, 22


@dataclass(frozen=True)
class DeliveredClip:
    """A delivered file, the name of its row and the prompt that it was made from."""

    file: Path
    name: str
    prompt: str


def deliver_finished(
    store: ArtifactStore, batch: BatchDocument, settings: Settings, folder: Path
) -> list[DeliveredClip]:
    """The finished clips of a batch, brought to its target `folder` where its run has not come to that, by file name.

    The store is asked clip by clip: a stage tells its results only when all of its clips are through.
    """
    weights, targets = CheckpointFolder(settings.checkpoint_root()), Targets.of(settings)
    books = {digest: recipe_book(batch.profile(digest), settings, weights) for digest in batch.profiles}
    brought = []
    with TemporaryDirectory() as scratch:
        for clip in batch_clips(store, batch.batch_id):
            book = books[clip.profile_digest]
            stored = StoredClip(store, book, clip)
            if muxed := stored.manifest(StageName.MUX):
                ClipDelivery(store, batch.batch_id, targets, Path(scratch), book=book).deliver(clip, muxed.key, stored)
                name = final_places(store, batch.batch_id, clip)[0].name
                brought.append(DeliveredClip(folder / name, clip.names[0], clip.prompt))
    return sorted(brought, key=lambda clip: clip.file.name)


def write_sheet(clips: Sequence[DeliveredClip], target: Path) -> None:
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


def _strip(clip: DeliveredClip) -> Image.Image:
    count = count_frames(clip.file)
    wanted = frozenset((2 * part + 1) * count // (2 * FRAMES) for part in range(FRAMES))
    images = [Image.fromarray(frame.numpy()) for frame in read_frames(clip.file, indices=wanted)]
    height = round(images[0].height * CELL_WIDTH / images[0].width)
    strip = Image.new("RGB", (FRAMES * (CELL_WIDTH + MARGIN) + MARGIN, LABEL_HEIGHT + height + MARGIN))
    ImageDraw.Draw(strip).text((MARGIN, MARGIN), clip.name, fill="white", font=ImageFont.load_default(14))
    for position, image in enumerate(images):
        strip.paste(image.resize((CELL_WIDTH, height)), (MARGIN + position * (CELL_WIDTH + MARGIN), LABEL_HEIGHT))
    return strip


def judgement(clip: DeliveredClip) -> str | None:
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
