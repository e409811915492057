"""Several clips as one packed sequence for the preview model, each with a diffusion time of its own.

Inference packs the two guidance branches of one clip; training packs unrelated clips in the same way, one attention
sequence each, so the model's own layers, tables and heads serve both.
"""

# Shapes: B clips, T/h/w video latents, A audio latents, L text tokens, C channels, N tokens, n streams, c hidden size

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.coordinates import Size, audio_coords, text_coords, video_coords
from magi2.models.preview.layout import ClipLayout, ClipSize, Packing, Segment, Source, latent_rows, unpack
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.time_channels import normalised_time, time_channels


@dataclass(frozen=True, eq=False)
class Example:
    """A clip to learn: clean latents video [1, C, T, h, w] and audio [1, A, C], and text embeddings [L, C]."""

    video: Tensor
    audio: Tensor
    text_embeds: Tensor


def lay_out_batch(model: PreviewModel, examples: Sequence[Example]) -> ClipLayout:
    """The layout of all examples, on the model's device; its branches are the clips. Text embedders get gradients.

    Raises: ContractError when the clips differ in size or there is none.
    """
    sizes = {(tuple(example.video.shape[2:]), example.audio.shape[1]) for example in examples}
    if len(sizes) != 1:
        raise ContractError(f"a batch of {len(examples)} clips has {len(sizes)} sizes, want exactly one")
    first = examples[0]
    size: Size = (first.video.shape[2], first.video.shape[3], first.video.shape[4])
    texts = [example.text_embeds.float() for example in examples]
    packing = _pack(size, first.audio.shape[1], [len(text) for text in texts], model)
    clip = ClipSize(size, first.audio.shape[1], len(examples))
    return model.lay_out(packing, {Source.TEXT: torch.cat(texts)}, clip)


def _pack(size: Size, audio_length: int, text_lengths: Sequence[int], model: PreviewModel) -> Packing:
    cells = size[0] * size[1] * size[2]
    interpolation = model.config.data_proxy.spatial_rope_interpolation
    video, audio = video_coords(size, interpolation=interpolation), audio_coords(audio_length)
    segments: list[Segment] = []
    coords: list[Tensor] = []
    for index, (begin, length) in enumerate(zip(accumulate(text_lengths, initial=0), text_lengths, strict=False)):
        segments.append(Segment(Source.VIDEO, index * cells, cells))
        segments.append(Segment(Source.AUDIO, index * audio_length, audio_length))
        coords += [video, audio]
        if length:
            segments.append(Segment(Source.TEXT, begin, length))
            coords.append(text_coords(length))
    bounds = accumulate((cells + audio_length + length for length in text_lengths), initial=0)
    return Packing(tuple(segments), torch.cat(coords), tuple(bounds))


def predict(
    model: PreviewModel, video: Sequence[Tensor], audio: Sequence[Tensor], timesteps: Tensor, layout: ClipLayout
) -> tuple[Tensor, Tensor]:
    """Velocities (video [B, C, T, h, w], audio [B, A, C]) fp32 of noisy latents at `timesteps` [B] (0..1000)."""
    rows = {Source.VIDEO: [latent_rows(one) for one in video], Source.AUDIO: [one[0].float() for one in audio]}
    width = model.config.data_proxy.time_channel_dim
    time_rows = time_channels(normalised_time(timesteps), layout.time_frequencies, width)
    embedded = []
    for segment in layout.grouped_segments:
        if segment.source is Source.TEXT:
            embedded.append(layout.static_rows[segment])
        else:
            clip = segment.start // segment.length
            features = rows[segment.source][clip]
            embedded.append(model.pre_adapter(segment.source, features, time_rows[clip], model.compute_dtype))
    streams = torch.cat(embedded)
    streams = streams.view(len(streams), model.config.mhc_config.num_stream, -1)
    return unpack(*model.velocity_rows(model.block(streams, layout), layout), layout)
