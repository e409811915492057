"""encode: captions and reference images become embeddings; the negative prompt is encoded once per profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from magi2.artifacts.recipe import Recipe
from magi2.errors import ImageError
from magi2.inputs.files import read_unchanged
from magi2.media.image import Note, load_reference, prepare_reference
from magi2.models.text_encoder.figures import pool_figures
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.loading import load_wan_encoder
from magi2.prompts.compact import compact_prompt
from magi2.recipes.book import encoder_text
from magi2.stages.base import Product, Stage
from magi2.stages.context import StageContext
from magi2.stages.contracts import encode_contract, text_contract
from magi2.types import Clip, FigureImage, StageName

if TYPE_CHECKING:
    from magi2.models.text_encoder.encoder import TextEncoder, TextEncoding


@dataclass
class Encoders:
    """The text encoder, and the image encoder once the first clip with an image asks for it."""

    context: StageContext
    text: TextEncoder
    _image: WanEncoder | None = field(default=None)

    @property
    def image(self) -> WanEncoder:
        if self._image is None:
            path = self.context.weights.files("video_vae")[0]
            config = self.context.book.profile.architectures.video_vae
            self._image = load_wan_encoder(path, config, device=self.context.device)
        return self._image


class EncodeStage(Stage[Encoders]):
    """Writes text rows, one row per figure and one latent per reference image."""

    name: ClassVar[StageName] = StageName.ENCODE

    def make_shared(self, clips: Sequence[Clip]) -> None:
        """See to the negative prompt's embedding, which every clip needs."""
        negative = self.context.book.negative
        if clips and negative is not None:
            self.obtain(negative, self._make_negative)

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> Encoders:
        # Here: transformers takes seconds that the processes of other stages need not pay.
        from magi2.models.text_encoder.encoder import load_text_encoder

        encoder = load_text_encoder(
            self.context.weights.folder("text_encoder"),
            device=self.context.device,
            dtype=self.context.compute_dtype,
            max_tokens=self.context.book.profile.text.max_tokens,
        )
        return Encoders(self.context, encoder)

    def make(self, clip: Clip, models: Encoders, folder: Path) -> Product:
        encoding = self._encode(models, encoder_text(clip, self.context.caption(clip).text))
        figure_embeds, found = pool_figures(encoding, [figure.number for figure in clip.figures])
        tensors = {"text_embeds": encoding.embeds, "figure_embeds": figure_embeds}
        flags = [f"figure_{f.number}_not_in_text" for f, ok in zip(clip.figures, found, strict=True) if not ok]
        for index, figure in enumerate(clip.figures):
            tensors[f"reference_latents_{index}"], notes = self._encode_image(models, figure)
            flags += [f"figure_{figure.number}_{note}" for note in notes]
        return Product(
            files=self.save(folder, tensors, encode_contract(self.context.book.profile, len(clip.figures))),
            flags=(*flags, *_truncation_flag(encoding)),
            report=_report(encoding),
        )

    def _make_negative(self, models: Encoders, folder: Path) -> Product:
        encoding = self._encode(models, compact_prompt(self.context.book.negative_prompt or ""))
        tensors = {"text_embeds": encoding.embeds}
        return Product(
            files=self.save(folder, tensors, text_contract(self.context.book.profile)),
            flags=_truncation_flag(encoding),
            report=_report(encoding),
        )

    def _encode(self, models: Encoders, text: str) -> TextEncoding:
        return models.text.encode(text, on_overflow=self.context.book.profile.text.on_overflow)

    def _encode_image(self, models: Encoders, figure: FigureImage) -> tuple[Tensor, tuple[Note, ...]]:
        preview = self.context.book.profile.preview
        height, width, mode = preview.height, preview.width, preview.ref_image_type
        content = read_unchanged(figure.path, figure.sha256)
        picture = load_reference(content, height, width, mode, preview.background)
        if picture.treatment != figure.treatment:  # the key that was planned says otherwise
            raise ImageError(f"figure {figure.number} was read otherwise when planned", hint="run the batch again")
        pixels = prepare_reference(picture.pixels, height=height, width=width, mode=mode)
        return models.image.encode(pixels.to(self.context.device)), picture.notes


def _truncation_flag(encoding: TextEncoding) -> tuple[str, ...]:
    return ("text_truncated",) if encoding.dropped_tokens else ()


def _report(encoding: TextEncoding) -> dict[str, int]:
    return {"tokens": len(encoding.token_ids), "dropped_tokens": encoding.dropped_tokens}
