"""A batch of clips as one sequence of rows for the preview model, each clip with a diffusion time of its own.

The model's own embedders, layers and heads serve it; only the order of the rows is training's (see `rows`).
"""

# Shapes: B clips, b clips of a kind, T/h/w video latents, A audio latents, L text rows, C channels, N tokens

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from demo_world.training.rows import BatchShape, ClipRows
from magi2.models.layers import rope_table
from magi2.models.preview.layout import ClipLayout, Source
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.time_channels import normalised_time, time_channels, time_frequencies


@dataclass(frozen=True, eq=False)
class Batch:
    """Clips to learn, those without a reference image first, fp32 on the model's device.

    Clean latents `video` [B, C, T, h, w] and `audio` [B, A, C]; for either kind text embeddings `texts` [b, L, C] and
    which of their rows are tokens, `is_text` [b, L] bool; `images` [b, C, 1, h, w] and `figure_embeds` [b, C].
    """

    video: Tensor
    audio: Tensor
    texts: tuple[Tensor, Tensor]
    is_text: tuple[Tensor, Tensor]
    images: Tensor
    figure_embeds: Tensor


def lay_out(model: PreviewModel, shape: BatchShape) -> ClipLayout:
    """What all batches of a shape share, on the model's device, for a model with `ops.training_ops`.

    Its `sequences` are `ClipRows`; packed and grouped order are the same. It has no segments and no embedded rows.
    """
    device = model.device
    coords = shape.coords(interpolation=model.config.data_proxy.spatial_rope_interpolation)
    order = torch.arange(len(coords), device=device)
    is_text = tuple(
        torch.ones(count, rows, dtype=torch.bool, device=device)
        for count, rows in zip(shape.counts, shape.text_rows, strict=True)
    )
    bounds = (0, len(coords))
    rows = ClipRows(bounds, torch.tensor(bounds, dtype=torch.int32, device=device), shape, (is_text[0], is_text[1]))
    return ClipLayout(
        latent_size=shape.latent_size,
        audio_length=shape.audio_length,
        num_branches=shape.num_clips,
        segments=(),
        group_sizes=shape.group_sizes,
        sequences=rows,
        to_grouped=order,
        to_packed=order,
        # Computed on the CPU, as rendering does it.
        rope=rope_table(coords, model.pre_adapter.rope.bands.cpu()).to(device),
        time_frequencies=time_frequencies(model.config.data_proxy.time_channel_dim).to(device),
        static_rows={},
    )


def clip_rows(layout: ClipLayout) -> ClipRows:
    """The rows of a layout made by `lay_out`."""
    assert isinstance(layout.sequences, ClipRows)
    return layout.sequences


def predict(
    model: PreviewModel, batch: Batch, video: Tensor, audio: Tensor, timesteps: Tensor, layout: ClipLayout
) -> tuple[Tensor, Tensor]:
    """Velocities (video [B, C, T, h, w], audio [B, A, C]) fp32 of a batch's noisy latents at `timesteps` [B] (0..1000).

    `video` and `audio` take the place of the batch's clean latents. Gradients reach every parameter.
    """
    rows = clip_rows(layout).with_text(batch.is_text)
    streams = model.block(_embed(model, batch, video, audio, timesteps, layout), replace(layout, sequences=rows))
    shape = rows.shape
    num_video, num_audio = shape.num_clips * shape.cells[0], shape.num_clips * shape.audio_length
    before_audio = shape.group_sizes[0]
    flat = streams.flatten(1)
    video_rows = model.post_adapter.video(flat[:num_video])
    audio_rows = model.post_adapter.audio(flat[before_audio : before_audio + num_audio])
    video_rows = video_rows.view(shape.num_clips, *shape.latent_size, -1)
    return video_rows.permute(0, 4, 1, 2, 3), audio_rows.view(shape.num_clips, shape.audio_length, -1)


def _embed(
    model: PreviewModel, batch: Batch, video: Tensor, audio: Tensor, timesteps: Tensor, layout: ClipLayout
) -> Tensor:
    """Residual streams [N, n, c]. What a clip is conditioned on has time 0."""
    width = model.config.data_proxy.time_channel_dim
    time = time_channels(normalised_time(timesteps), layout.time_frequencies, width)
    clean = time_channels(torch.zeros((), device=model.device), layout.time_frequencies, width)
    cells, audio_length = clip_rows(layout).shape.cells[0], layout.audio_length
    parts = (
        (Source.VIDEO, _cell_rows(video), time.repeat_interleave(cells, dim=0)),
        (Source.IMAGE, _cell_rows(batch.images), clean),
        (Source.AUDIO, audio.flatten(0, 1), time.repeat_interleave(audio_length, dim=0)),
        *((Source.TEXT, text.flatten(0, 1), clean) for text in batch.texts),
        (Source.TEXT, batch.figure_embeds, clean),
    )
    embedded = [model.pre_adapter(source, features, times, model.compute_dtype) for source, features, times in parts]
    return torch.cat(embedded).view(-1, model.config.mhc_config.num_stream, model.config.hidden_size)


def _cell_rows(latents: Tensor) -> Tensor:
    """Latents [B, C, T, h, w] as rows [B * T*h*w, C]."""
    return latents.flatten(2).transpose(1, 2).flatten(0, 1)
