"""How a clip becomes one token sequence, and everything about it that does not change between denoising steps.

The packed order is: all tokens of the conditional sample (video, audio, text, then figure token and cells of each
reference image), all tokens of the unconditional one, and padding. Attention works in this order, within each sample.
The grouped order sorts the same tokens stably by modality, so that a layer applies each modality's weights to one
contiguous block. Both are lists of segments, runs of rows of a source.

Source: MAGI-2 preview inference code.
"""

# Shapes: N tokens, T/h/w video latent size, A audio latents, B rotary bands, C channels, P branches

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.layers import NUM_MODALITIES
from magi2.models.preview.attention import Sequences
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.coordinates import (
    Size,
    audio_coords,
    figure_coords,
    image_coords,
    padding_coords,
    text_coords,
    video_coords,
)

VIDEO, AUDIO, TEXT = range(NUM_MODALITIES)


class Source(Enum):
    """Where the features of a token come from. Only the first two change from step to step."""

    VIDEO = "video"
    AUDIO = "audio"
    TEXT = "text"
    IMAGE = "image"
    PADDING = "padding"


_MODALITY = {Source.VIDEO: VIDEO, Source.AUDIO: AUDIO, Source.TEXT: TEXT, Source.IMAGE: VIDEO, Source.PADDING: TEXT}


@dataclass(frozen=True)
class Segment:
    """A run of consecutive tokens: rows `start` to `start + length` of a source."""

    source: Source
    start: int
    length: int

    @property
    def modality(self) -> int:
        """Whose weights these tokens use: 0 video, 1 audio, 2 text."""
        return _MODALITY[self.source]


def by_modality(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Packed segments in grouped order."""
    return tuple(sorted(segments, key=lambda segment: segment.modality))


@dataclass(frozen=True, eq=False)
class Packing:
    """The packed order on the host: segments, coordinates [N, 9] fp32, and where each attention sequence ends."""

    segments: tuple[Segment, ...]
    coords: Tensor
    bounds: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.bounds[-1]

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Tokens of each modality."""
        return tuple(sum(s.length for s in self.segments if s.modality == m) for m in range(NUM_MODALITIES))

    def piece(self, start: int, stop: int) -> Packing:
        """Tokens `start` to `stop` by themselves, as one sequence."""
        ends = list(accumulate(segment.length for segment in self.segments))
        cut = []
        for segment, end in zip(self.segments, ends, strict=True):
            first, last = max(start, end - segment.length), min(stop, end)
            if first < last:
                cut.append(Segment(segment.source, segment.start + first - (end - segment.length), last - first))
        return Packing(tuple(cut), self.coords[start:stop], (0, stop - start))

    def count(self, source: Source) -> int:
        """Tokens of a source."""
        return sum(segment.length for segment in self.segments if segment.source is source)

    def modalities(self) -> Tensor:
        """Modality of every packed token: [N] int64."""
        lengths = torch.tensor([segment.length for segment in self.segments])
        return torch.tensor([segment.modality for segment in self.segments]).repeat_interleave(lengths)


@dataclass(frozen=True)
class ClipSize:
    """Latents (T, h, w) of the video, latents of the sound, and how many guidance branches come out."""

    latent_size: Size
    audio_length: int
    num_branches: int


@dataclass(frozen=True, eq=False)
class ClipLayout:
    """What one clip's denoising steps share, made by `PreviewModel.prepare`.

    On the host: the order of the tokens, sizes, ends of the attention sequences. On the model's device: `to_grouped`
    and `to_packed` [N] int64, gather indices into packed and grouped rows; `rope` [N, 6B] fp32 in grouped order;
    `time_frequencies` fp32; `static_rows`, the embedded rows [*, n*c] (with their time channels, in the dtype of the
    streams) of the segments that stay the same.
    """

    latent_size: Size
    audio_length: int
    num_branches: int
    segments: tuple[Segment, ...]
    group_sizes: tuple[int, ...]
    sequences: Sequences
    to_grouped: Tensor
    to_packed: Tensor
    rope: Tensor
    time_frequencies: Tensor
    static_rows: Mapping[Segment, Tensor]

    @property
    def grouped_segments(self) -> tuple[Segment, ...]:
        """The segments in grouped order."""
        return by_modality(self.segments)


def pack(
    latent_size: Size,
    audio_length: int,
    conditioning: Conditioning,
    *,
    use_ref_for_uncond: bool,
    branches: Sequence[int],
    interpolation: str,
    pad_to_multiple: int = 1,
) -> Packing:
    """Lay out the tokens of guidance branches: 0 conditional, 1 not. The sources are those of `static_features`.

    Raises: ContractError when a size is below 1.
    """
    if min(*latent_size, audio_length, pad_to_multiple) < 1:
        sizes = f"latent size {latent_size}, audio length {audio_length}, pad_to_multiple {pad_to_multiple}"
        raise ContractError(f"{sizes}: all must be at least 1")
    parts: list[tuple[Segment, Tensor]] = []
    bounds = [0]
    for branch in branches:
        parts += _branch(latent_size, audio_length, conditioning, branch, use_ref_for_uncond, interpolation)
        bounds.append(sum(segment.length for segment, _ in parts))
    if padding := -bounds[-1] % pad_to_multiple:
        parts.append((Segment(Source.PADDING, 0, padding), padding_coords(padding)))
        bounds.append(bounds[-1] + padding)
    kept = [(segment, coords) for segment, coords in parts if segment.length]
    return Packing(tuple(s for s, _ in kept), torch.cat([coords for _, coords in kept]), tuple(bounds))


def _branch(
    size: Size, audio_length: int, conditioning: Conditioning, branch: int, use_ref_for_uncond: bool, interpolation: str
) -> list[tuple[Segment, Tensor]]:
    """Segments and coordinates of the conditional (0) or unconditional (1) branch."""
    text_lengths = (conditioning.text_embeds.shape[1], conditioning.negative_embeds.shape[1])
    text_length = text_lengths[branch]
    parts = [
        (Segment(Source.VIDEO, 0, size[0] * size[1] * size[2]), video_coords(size, interpolation=interpolation)),
        (Segment(Source.AUDIO, 0, audio_length), audio_coords(audio_length)),
        (Segment(Source.TEXT, branch * text_lengths[0], text_length), text_coords(text_length)),
    ]
    cells = [image.size[0] * image.size[1] for image in conditioning.references]
    starts = list(accumulate(cells, initial=0))
    zeroed_start = starts[-1] if branch and not use_ref_for_uncond else 0
    for index, image in enumerate(conditioning.references):
        figure = Segment(Source.TEXT, sum(text_lengths) + index, 1)
        patches = Segment(Source.IMAGE, zeroed_start + starts[index], cells[index])
        parts.append((figure, figure_coords(index, image.size, size[0])))
        parts.append((patches, image_coords(index, image.size, size[0])))
    return parts


def static_features(conditioning: Conditioning, *, use_ref_for_uncond: bool) -> dict[Source, Tensor]:
    """Features of the tokens that stay the same, fp32.

    Text: rows of the prompt, of the negative prompt, and figure tokens, [n, C_text]. Image: cells of every reference
    image [n, C_video], followed by as many zero rows when the unconditional branch must not see the images.
    """
    texts = [conditioning.text_embeds[0], conditioning.negative_embeds[0]]
    figures = [image.figure_embeds.unsqueeze(0) for image in conditioning.references]
    features = {Source.TEXT: torch.cat([rows.float() for rows in [*texts, *figures]])}
    if conditioning.references:
        cells = torch.cat([latent_rows(image.latents) for image in conditioning.references])
        features[Source.IMAGE] = cells if use_ref_for_uncond else torch.cat([cells, torch.zeros_like(cells)])
    return features


def latent_rows(latents: Tensor) -> Tensor:
    """Latents [1, C, T, h, w] as token rows [T*h*w, C] fp32, w fastest."""
    return latents[0].float().flatten(1).transpose(0, 1)


def unpack(video_rows: Tensor, audio_rows: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
    """Rows of the latents' tokens, branch after branch, as latents: video [P, C, T, h, w] and audio [P, A, C]."""
    video = video_rows.view(layout.num_branches, *layout.latent_size, -1).permute(0, 4, 1, 2, 3)
    return video.contiguous(), audio_rows.view(layout.num_branches, layout.audio_length, -1)


def grouping(packing: Packing) -> tuple[Tensor, Tensor]:
    """(`to_grouped`, `to_packed`) [N] int64: `packed[to_grouped]` is grouped, `grouped[to_packed]` is packed again."""
    to_grouped = torch.argsort(packing.modalities(), stable=True)
    return to_grouped, torch.argsort(to_grouped)
