"""Pictures of clips at work: seen while the preview is made, gone with it, and of no matter to the clip."""

from __future__ import annotations

import io
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from magi2.artifacts.local import LocalStore
from magi2.batches.retention import sweep_snapshots
from magi2.errors import OutOfMemoryError
from magi2.models.turbo_vae.loading import WEIGHTS_NAME
from magi2.platform import MemoryStats
from magi2.stages.at_work import ClipPictures, require_room
from magi2.stages.context import StageContext
from magi2.stages.progress import Silent
from magi2.stages.render import run_stage
from magi2.stages.snapshots import picture_name
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip, make_context, small_profile

GIB = 1 << 30
PATIENCE_S = 120.0
OVERRIDES = ("preview.steps=3", "text.use_negative_prompt=false")


class Looking(Silent):
    """Holds the clip at its last step until `seen` gives something, and keeps that."""

    def __init__(self, seen: Callable[[], bytes | None]) -> None:
        self.found: bytes | None = None
        self._seen = seen

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        if stage is StageName.PREVIEW and done == total:
            ends = time.monotonic() + PATIENCE_S
            while self.found is None and time.monotonic() < ends:
                self.found = self._seen()
                time.sleep(0.02)


def context_of(checkpoint: Path, store: Path, *overrides: str, shown: bool = True) -> tuple[StageContext, Clip]:
    """A context in which the preview of the clip is the next thing to be made."""
    profile = small_profile(*OVERRIDES, *overrides)
    clip = make_clip(profile)
    context = make_context(checkpoint, store, profile)
    context.snapshot_every, context.shows_pictures = 1, shown
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        run_stage(context, stage, [clip])
    return context, clip


def preview_digests(context: StageContext, clip: Clip) -> dict[str, str]:
    (result,) = run_stage(context, StageName.PREVIEW, [clip])
    assert result.state == "made" and result.key is not None
    manifest = context.store.find(StageName.PREVIEW, result.key)
    assert manifest is not None
    return {name: payload.sha256 for name, payload in manifest.payloads.items()}


def test_clip_at_work_is_seen_in_small_and_has_the_same_bits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    plain = preview_digests(*context_of(tiny_checkpoint, tmp_path / "plain", shown=False))
    context, clip = context_of(tiny_checkpoint, tmp_path / "seen")
    looking = Looking(lambda: context.store.get_document(picture_name(clip.clip_id)))
    context.progress = looking
    assert preview_digests(context, clip) == plain
    assert looking.found is not None
    with Image.open(io.BytesIO(looking.found)) as image:
        assert (image.format, image.size) == ("WEBP", (64, 32))
    assert list(context.store.list_documents("snapshots")) == []


def test_picture_that_cannot_be_made_costs_no_clip_and_is_told_once(
    tiny_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    context, clip = context_of(weights, tmp_path / "store")
    (file,) = weights.glob(f"turbo_vae/{WEIGHTS_NAME}")
    file.write_bytes(b"no decoder")
    told = "clips at work are no longer shown"
    context.progress = Looking(lambda: caplog.text.encode() if told in caplog.text else None)
    with caplog.at_level(logging.WARNING):
        preview_digests(context, clip)
    assert caplog.text.count(told) == 1
    assert list(context.store.list_documents("snapshots")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"shown": False},
        {"overrides": ("preview.width=256", "preview.height=128")},
        {"overrides": ("decode.decoder=wan",)},
    ],
)
def test_no_pictures_where_they_are_switched_off_too_dear_or_of_another_decoder(
    tiny_checkpoint: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    profile = small_profile(*OVERRIDES, *change.get("overrides", ()))  # type: ignore[misc]
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    context.snapshot_every, context.shows_pictures = 1, bool(change.get("shown", True))
    with ClipPictures(context).of(make_clip(profile), is_resumed=True) as show:
        assert show is None


def test_resumed_clip_leaves_no_picture_of_an_earlier_run(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile(*OVERRIDES)
    context, clip = make_context(tiny_checkpoint, tmp_path / "store", profile), make_clip(profile)
    context.snapshot_every, context.shows_pictures = 1, True
    name = picture_name(clip.clip_id)
    context.store.put_document(name, b"of an earlier run")
    with pytest.raises(RuntimeError), ClipPictures(context).of(clip, is_resumed=True):
        raise RuntimeError("the loop fails")
    assert context.store.get_document(name) is not None  # whoever goes on may show it
    with ClipPictures(context).of(clip, is_resumed=True):
        pass
    assert context.store.get_document(name) is None


def test_card_without_room_beside_the_models_gets_no_picture() -> None:
    cells = 32 * 56  # 540p: 0.4 GiB
    require_room(MemoryStats(allocated=60 * GIB, peak=76 * GIB, total=80 * GIB), cells)
    with pytest.raises(OutOfMemoryError, match=r"one takes 0\.4 GiB, the models took 77\.0 of 80\.0"):
        require_room(MemoryStats(allocated=60 * GIB, peak=77 * GIB, total=80 * GIB), cells)


def test_pictures_that_were_left_behind_go_by_their_age(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path / "store")
    name = picture_name("a" * 64)
    store.put_document(name, b"picture")
    assert sweep_snapshots(store, dry_run=False) == []
    assert sweep_snapshots(store, older_than_hours=-1, dry_run=False) == [name]
    assert store.get_document(name) is None and caplog.text == ""
