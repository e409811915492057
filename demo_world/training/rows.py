"""The rows of a training batch: every clip of a kind has as many as the others, text is filled up and masked.

There are two kinds of clip, without and with a reference image. In grouped order, which training keeps throughout, the
rows are: video of all clips, cells of the images, sound of all clips, text of the clips without and with an image,
and one figure token for each image. Within a batch, clips without an image come first.
"""

# Shapes: N tokens in grouped order, B clips, b clips of a kind, L rows of one such clip

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from magi2.models.preview.attention import Sequences
from magi2.models.preview.coordinates import (
    Size,
    audio_coords,
    figure_coords,
    image_coords,
    text_coords,
    video_coords,
)


@dataclass(frozen=True)
class BatchShape:
    """How many clips have no image and one (`counts`), how many text rows those get, and the clips' size in latents."""

    counts: tuple[int, int]
    text_rows: tuple[int, int]
    latent_size: Size
    audio_length: int

    @property
    def num_clips(self) -> int:
        """Of both kinds."""
        return sum(self.counts)

    @property
    def cells(self) -> tuple[int, int]:
        """Latent cells of a clip and of its image, which has the size of one latent frame."""
        time, height, width = self.latent_size
        return time * height * width, height * width

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Clips and rows for each of them, per block of the grouped order."""
        video, image = self.cells
        text = zip(self.counts, self.text_rows, strict=True)
        sound = (self.num_clips, self.audio_length)
        return (self.num_clips, video), (self.counts[1], image), sound, *text, (self.counts[1], 1)

    @property
    def group_sizes(self) -> tuple[int, int, int]:
        """Rows of the modalities video, audio and text."""
        video, image, audio, plain, pictured, figure = (clips * rows for clips, rows in self.blocks)
        return video + image, audio, plain + pictured + figure

    def coords(self, *, interpolation: str) -> Tensor:
        """[N, 9], those of each clip as it has them alone."""
        time, height, width = self.latent_size
        parts = (
            video_coords(self.latent_size, interpolation=interpolation),
            image_coords(0, (height, width), time),
            audio_coords(self.audio_length),
            *(text_coords(length) for length in self.text_rows),
            figure_coords(0, (height, width), time),
        )
        return torch.cat([part.repeat(clips, 1) for part, (clips, _) in zip(parts, self.blocks, strict=True)])


@dataclass(frozen=True, eq=False)
class ClipRows(Sequences):
    """Which grouped rows a clip consists of; `is_text` [b, L] bool of either kind says which text rows hold a token."""

    shape: BatchShape
    is_text: tuple[Tensor, Tensor]

    def with_text(self, is_text: tuple[Tensor, Tensor]) -> ClipRows:
        """The rows of another batch of the same shape."""
        return replace(self, is_text=is_text)

    def by_clip(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Grouped rows [N, ...] by clips: [b, L, ...] for either kind."""
        video, image, audio, plain_text, text, figure = self._blocks(rows)
        plain = self.shape.counts[0]
        return (
            torch.cat([video[:plain], audio[:plain], plain_text], dim=1),
            torch.cat([video[plain:], audio[plain:], text, figure, image], dim=1),
        )

    def grouped(self, clips: list[Tensor]) -> Tensor:
        """Back from `by_clip`: [N, ...]."""
        cells, image = self.shape.cells
        audio = self.shape.audio_length
        plain, pictured = clips
        plain_video, plain_audio, plain_text = plain.split([cells, audio, self.shape.text_rows[0]], dim=1)
        lengths = [cells, audio, self.shape.text_rows[1], 1, image]
        video, sound, text, figure, images = pictured.split(lengths, dim=1)
        blocks = (plain_video, video, images, plain_audio, sound, plain_text, text, figure)
        return torch.cat([block.flatten(0, 1) for block in blocks])

    def visible(self) -> tuple[Tensor, Tensor]:
        """Whether each row of `by_clip` may be attended to: [b, L] bool for either kind."""
        plain, pictured = self.by_clip(self.is_token()[:, None])
        return plain[..., 0], pictured[..., 0]

    def is_token(self) -> Tensor:
        """Whether each grouped row stands for something: [N] bool."""
        before = self.is_text[0].new_ones(sum(self.shape.group_sizes[:2]))
        texts = [mask.flatten() for mask in self.is_text]
        return torch.cat([before, *texts, self.is_text[0].new_ones(self.shape.counts[1])])

    def _blocks(self, rows: Tensor) -> list[Tensor]:
        parts = rows.split([clips * length for clips, length in self.shape.blocks])
        return [
            part.unflatten(0, (clips, length)) for part, (clips, length) in zip(parts, self.shape.blocks, strict=True)
        ]
