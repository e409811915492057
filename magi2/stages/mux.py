"""mux: lossless picture and sound become the delivered file, pictures of it and a probe report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.recipe import Recipe
from magi2.media.audio import audio_sample_count
from magi2.media.deliver import deliver
from magi2.media.delivery import Overlay, delivered_frame_count
from magi2.media.label import write_label
from magi2.media.marks.aigc import AIGC_KEY
from magi2.media.marks.read import require_marks
from magi2.media.poster import write_contact_sheet, write_poster, write_thumbnail
from magi2.media.probe import ExpectedClip, check_clip, probe
from magi2.media.watermarked import write_watermarked
from magi2.media.watermarks import Watermark, load_watermark
from magi2.quality.measures import MEASURES
from magi2.recipes.book import delivered_frames, frame_rate
from magi2.recipes.marking import clip_tags
from magi2.stages.base import Product, Stage
from magi2.stages.context import missing_input
from magi2.stages.contracts import PICTURE, PROBE, SOUND, check_promise
from magi2.types import CLIP, CONTACT_SHEET, POSTER, THUMBNAIL, Clip, StageName


class MuxStage(Stage["Watermark | None"]):
    """Fails unless frame count, size, durations, streams and marks of the delivered file are as planned."""

    name: ClassVar[StageName] = StageName.MUX

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> Watermark | None:
        """The watermark, for a profile that has one: ffmpeg was found before the first stage."""
        name = self.context.book.profile.delivery.watermark
        return None if name is None else load_watermark(name)

    def make(self, clip: Clip, models: Watermark | None, folder: Path) -> Product:
        profile, recipe = self.context.book.profile, self.recipe(clip)
        decoded = self._decoded(clip, recipe.inputs["decode"])
        spec, fps, frames = profile.delivery, frame_rate(profile), delivered_frames(profile)
        picture = self.context.payload(StageName.DECODE, decoded.key, PICTURE)
        sound = self.context.payload(StageName.DECODE, decoded.key, SOUND)
        if models is not None:
            decoded_picture, picture = picture, folder / PICTURE
            write_watermarked(decoded_picture, picture, models, recipe.key, fps=fps, ffmpeg=self.context.ffmpeg)
        caption = self.context.caption(clip).text
        metadata = clip_tags(profile, self.context.book.marking, recipe, clip.prompt, caption)
        target = folder / CLIP
        deliver(
            *(picture, sound, target, spec),
            fps=fps,
            frame_count=frames,
            metadata=metadata,
            ffmpeg=self.context.ffmpeg,
            label=self._label(folder),
        )
        require_marks(target, metadata[AIGC_KEY])
        found = probe(target)
        width, height = profile.delivered_size
        count = delivered_frame_count(spec, frame_count=frames, fps=fps, sample_count=audio_sample_count(sound))
        check_clip(found, ExpectedClip(spec.codec, width, height, count, fps))
        write_poster(picture, folder / POSTER)
        write_thumbnail(folder / POSTER, folder / THUMBNAIL)
        write_contact_sheet(picture, folder / CONTACT_SHEET)
        (folder / PROBE).write_text(json.dumps(found.as_json(), indent=1, sort_keys=True))
        measured = {MEASURES: decoded.report[MEASURES]} if MEASURES in decoded.report else {}
        return Product(
            files={name: folder / name for name in (CLIP, POSTER, THUMBNAIL, CONTACT_SHEET, PROBE)},
            flags=decoded.flags,
            report={"frames": count, "codec": spec.codec, "width": width, "height": height, "fps": str(fps)} | measured,
        )

    def _decoded(self, clip: Clip, key: str) -> Manifest:
        found = self.context.store.find(StageName.DECODE, key)
        if found is None:
            raise missing_input(StageName.DECODE, clip)
        check_promise(found, None)
        return found

    def _label(self, folder: Path) -> Overlay | None:
        book = self.context.book
        label, font = book.profile.delivery.label, book.marking.font
        if label is None or font is None:
            return None
        return write_label(label, font.path, book.profile.delivered_size, folder / "label.rgba")
