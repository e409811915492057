"""The preview transformer: video, audio and text tokens of both guidance branches in one sequence.

Source: MAGI-2 preview inference code.
"""

# Shapes: N tokens, n residual streams, c hidden size, T/h/w video latent size, A audio latents, C channels, P branches

from __future__ import annotations

import torch
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.layers import rope_table
from magi2.models.preview.adapters import PostAdapter, PreAdapter
from magi2.models.preview.attention import sequences
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.coordinates import Size
from magi2.models.preview.layer import Attention, Layer
from magi2.models.preview.layout import (
    ClipLayout,
    ClipSize,
    Packing,
    Segment,
    Source,
    grouping,
    latent_rows,
    pack,
    static_features,
    unpack,
)
from magi2.models.preview.linear import QuantisedLinear
from magi2.models.preview.mlp import DenseMlp, MultiHeadMoe, SparseMlp
from magi2.models.preview.ops import PreviewOps
from magi2.models.preview.time_channels import normalised_time, time_channels, time_frequencies


class Block(nn.Module):
    """The stack of layers."""

    def __init__(self, config: PreviewConfig, *, dtype: torch.dtype, weights: Weights = BF16) -> None:
        super().__init__()
        indices = range(config.num_layers)
        self.layers = nn.ModuleList(Layer(config, index, dtype=dtype, weights=weights) for index in indices)

    def forward(self, streams: Tensor, layout: ClipLayout) -> Tensor:
        for layer in self.layers:
            streams = layer(streams, layout)
        return streams


class PreviewModel(nn.Module):
    """Predicts flow velocities of video and audio latents. Parameters carry the published names.

    `compute_dtype` is the dtype of the streams, of the linear and expert weights and of attention; norms, router,
    hyper-connection coefficients, embedders and heads are fp32 in any case. float32 gives the exact form for tests.
    `weights` says which of the linear and expert weights are e4m3 instead.
    """

    def __init__(
        self,
        config: PreviewConfig,
        *,
        compute_dtype: torch.dtype = torch.bfloat16,
        weights: Weights = BF16,
    ) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype, self.weights = compute_dtype, weights
        self.pre_adapter = PreAdapter(config)
        self.block = Block(config, dtype=compute_dtype, weights=weights)
        self.post_adapter = PostAdapter(config)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.pre_adapter.video_embedder.weight.device

    @property
    def attention_ranks(self) -> tuple[int, ...]:
        """The numbers of ranks that may share the attention heads, which depend on a clip's branches."""
        return (1,)

    def use_ops(self, ops: PreviewOps) -> None:
        """Let every layer compute its heavy steps with `ops`."""
        for module in self.modules():
            if isinstance(module, Layer | Attention | DenseMlp | SparseMlp | MultiHeadMoe | QuantisedLinear):
                module.ops = ops

    def prepare(
        self,
        latent_size: Size,
        audio_length: int,
        conditioning: Conditioning,
        *,
        use_ref_for_uncond: bool = True,
        guided: bool = True,
        pad_to_multiple: int = 1,
    ) -> ClipLayout:
        """Everything that the steps of one clip share, on the model's device; call it once per clip.

        `latent_size` is (T, h, w). `guided` packs the unconditional branch (negative text, and the reference images
        unless `use_ref_for_uncond` is false, when it sees zeros instead) behind the conditional one. The token count
        is padded to a multiple of `pad_to_multiple`; published parallel runs use 48, ours need none. Raises:
        ContractError when a tensor does not fit the model or a size is below 1.
        """
        conditioning.check(self.config)
        packing = pack(
            latent_size,
            audio_length,
            conditioning,
            use_ref_for_uncond=use_ref_for_uncond,
            branches=(0, 1) if guided else (0,),
            interpolation=self.config.data_proxy.spatial_rope_interpolation,
            pad_to_multiple=pad_to_multiple,
        )
        clip = ClipSize(latent_size, audio_length, 1 + guided)
        return self.lay_out(packing, static_features(conditioning, use_ref_for_uncond=use_ref_for_uncond), clip)

    def lay_out(self, packing: Packing, features: dict[Source, Tensor], clip: ClipSize) -> ClipLayout:
        """The tables of `packing`, whose static sources are `features`, on the model's device."""
        device = self.device
        to_grouped, to_packed = grouping(packing)
        # Tables are computed on the CPU, so that every kind of device sees the same bits.
        rope = rope_table(packing.coords[to_grouped], self.pre_adapter.rope.bands.cpu())
        frequencies = time_frequencies(self.config.data_proxy.time_channel_dim).to(device)
        return ClipLayout(
            latent_size=clip.latent_size,
            audio_length=clip.audio_length,
            num_branches=clip.num_branches,
            segments=packing.segments,
            group_sizes=packing.group_sizes,
            sequences=sequences(packing.bounds, device),
            to_grouped=to_grouped.to(device),
            to_packed=to_packed.to(device),
            rope=rope.to(device),
            time_frequencies=frequencies,
            static_rows=self._static_rows(packing.segments, features, frequencies),
        )

    def forward(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
        """Velocities (video [P, C, T, h, w], audio [P, A, C]) fp32: P = 2 (conditional, unconditional), or 1 unguided.

        `video` [1, C, T, h, w] and `audio` [1, A, C] are the fp32 latents that both branches share, `timestep` a
        tensor of no dimension on the model's device. Nothing is read back to the host.
        """
        self._check_latents(video, audio, layout)
        streams = self.embed(latent_rows(video), audio[0].float(), timestep, layout)
        video_rows, audio_rows = self.velocity_rows(self.block(streams, layout), layout)
        return unpack(video_rows, audio_rows, layout)

    def embed(self, video_rows: Tensor, audio_rows: Tensor, timestep: Tensor, layout: ClipLayout) -> Tensor:
        """Residual streams [N, n, c] in grouped order from token rows of the latents, [T*h*w, C] and [A, C] fp32."""
        moving = {Source.VIDEO: video_rows, Source.AUDIO: audio_rows}
        time_row = self._time_row(normalised_time(timestep), layout.time_frequencies)
        embedded: dict[Segment, Tensor] = {}  # the branches share their latents, so equal segments are embedded once
        for segment in dict.fromkeys(layout.segments):
            rows = slice(segment.start, segment.start + segment.length)
            if segment.source in moving:
                features = moving[segment.source][rows]
                embedded[segment] = self.pre_adapter(segment.source, features, time_row, self.compute_dtype)
            else:
                embedded[segment] = layout.static_rows[segment]
        streams = torch.cat([embedded[segment] for segment in layout.grouped_segments])
        return streams.view(streams.shape[0], self.config.mhc_config.num_stream, -1)

    def velocity_rows(self, streams: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
        """Velocities (video rows, audio rows) fp32 of the latents' tokens, branch after branch, from streams [N, n, c].

        Other tokens (text, reference images, padding) have none.
        """
        flat = streams.flatten(1)
        parts = torch.split(flat, [segment.length for segment in layout.grouped_segments])
        video_rows, audio_rows = [flat[:0]], [flat[:0]]
        for segment, rows in zip(layout.grouped_segments, parts, strict=True):
            if segment.source is Source.VIDEO:
                video_rows.append(rows)
            elif segment.source is Source.AUDIO:
                audio_rows.append(rows)
        return self.post_adapter.video(torch.cat(video_rows)), self.post_adapter.audio(torch.cat(audio_rows))

    def _time_row(self, time: Tensor, frequencies: Tensor) -> Tensor:
        return time_channels(time, frequencies, self.config.data_proxy.time_channel_dim)

    def _static_rows(
        self, segments: tuple[Segment, ...], features: dict[Source, Tensor], frequencies: Tensor
    ) -> dict[Segment, Tensor]:
        """Embedded rows of the segments that stay the same. Conditioning has time 0, padding no time."""
        device = self.device
        clean = self._time_row(torch.zeros((), device=device), frequencies)
        static = {}
        for segment in dict.fromkeys(segments):
            rows = slice(segment.start, segment.start + segment.length)
            if segment.source is Source.PADDING:
                blank = torch.zeros(segment.length, self.config.text_in_channels, device=device)
                static[segment] = self.pre_adapter(Source.PADDING, blank, torch.zeros_like(clean), self.compute_dtype)
            elif segment.source in features:
                rows_in = features[segment.source][rows].to(device)
                static[segment] = self.pre_adapter(segment.source, rows_in, clean, self.compute_dtype)
        return static

    def _check_latents(self, video: Tensor, audio: Tensor, layout: ClipLayout) -> None:
        wanted_video = (1, self.config.video_in_channels, *layout.latent_size)
        wanted_audio = (1, layout.audio_length, self.config.audio_in_channels)
        for name, latents, wanted in (("video", video, wanted_video), ("audio", audio, wanted_audio)):
            if tuple(latents.shape) != wanted:
                raise ContractError(f"{name} latents have shape {list(latents.shape)}, the layout wants {list(wanted)}")
