"""The preview transformer on many ranks: the layout is applied from outside, layer code stays that of one device.

Each rank keeps a contiguous piece of its guidance branch's packed tokens (of both branches, if the layout does not
part them) and half heads of the routed experts. A clip of one branch is shared by all ranks, also where the layout
parts two. Three things leave a rank: attention heads, tokens for experts, and
the velocities at the end of a step, which every rank needs in whole. All sizes are worked out once per clip.
"""

# Shapes: S own tokens, N tokens of the ranks that share the sequence, P ranks, H/G query and key/value heads,
# h heads of one rank, d head dim, M MoE heads, D their dim, n streams, c hidden size

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.attention import Sequences, sequences
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.coordinates import Size
from magi2.models.preview.expert_share import expert_share
from magi2.models.preview.layout import (
    ClipLayout,
    ClipSize,
    Packing,
    Source,
    latent_rows,
    pack,
    static_features,
    unpack,
)
from magi2.models.preview.mlp import MultiHeadMoe, SparseMlp
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.ops import ExpertRun, HeldExperts, LocalRun, PreviewOps, Sizes
from magi2.parallel.buffers import Buffers
from magi2.parallel.collectives import Group, even_split, starts
from magi2.parallel.expert_exchange import ExpertExchange, Places
from magi2.parallel.layout import ModelHeads, check_heads
from magi2.parallel.mesh import Mesh
from magi2.parallel.ulysses import HeadExchange

VELOCITIES = "velocities"
"""The meter's name for what ranks gather at the end of a step."""


def model_heads(config: PreviewConfig) -> ModelHeads:
    """What of the architecture a layout has to divide."""
    moe = config.moe_config
    return ModelHeads(config.num_heads, config.num_query_groups, moe.num_heads, moe.num_experts)


@dataclass(frozen=True, eq=False)
class RankLayout(ClipLayout):
    """One rank's part of a clip: the segments, tables and group sizes of its own tokens.

    `sequences` are those of the ranks of `group`, which share the sequence, and `num_branches` counts what all ranks
    compute. For every rank of the mesh: how many tokens it has, and how many of those are tokens of the latents.
    """

    group: Group
    token_counts: tuple[int, ...]
    video_counts: tuple[int, ...]
    audio_counts: tuple[int, ...]

    def counts_of(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Tokens of each of the given ranks of the mesh."""
        return tuple(self.token_counts[rank] for rank in ranks)


class ParallelPreview(PreviewModel):
    """A `PreviewModel` spread over the ranks of `mesh`: the same calls and results, on every rank in step.

    Raises: ConfigError when the model's heads do not divide.
    """

    def __init__(
        self,
        config: PreviewConfig,
        mesh: Mesh,
        *,
        compute_dtype: torch.dtype = torch.bfloat16,
        weights: Weights = BF16,
    ) -> None:
        check_heads(mesh.layout, model_heads(config))
        super().__init__(config, compute_dtype=compute_dtype, weights=weights)
        self.mesh = mesh
        moe = config.moe_config
        share = expert_share(moe.num_heads, moe.num_experts, rank=mesh.ep.rank, size=mesh.ep.size)
        for module in self.modules():
            if isinstance(module, SparseMlp):
                module.moe_mlp = MultiHeadMoe(config, dtype=compute_dtype, share=share, weights=weights)
        self._ranks = _RankOps(mesh, moe.num_heads)
        self.use_ops(PreviewOps())

    @property
    def attention_ranks(self) -> tuple[int, ...]:
        layouts = (self.mesh.layout.for_branches(branches) for branches in (2, 1))
        return tuple(dict.fromkeys(each.cp for each in layouts if model_heads(self.config).objection(each) is None))

    def use_ops(self, ops: PreviewOps) -> None:
        """Let every layer compute its heavy steps with `ops`, between the exchanges with other ranks."""
        super().use_ops(self._ranks.table(ops))

    def prepare(
        self,
        latent_size: Size,
        audio_length: int,
        conditioning: Conditioning,
        *,
        use_ref_for_uncond: bool = True,
        guided: bool = True,
        pad_to_multiple: int = 1,
    ) -> RankLayout:
        """This rank's part of the clip. Every rank calls it with the same clip; nothing is exchanged.

        Raises: ContractError as the single model, and when the clip has fewer tokens than ranks; ConfigError when the
        heads do not divide by all ranks, which share one branch.
        """
        conditioning.check(self.config)
        check_heads(self.mesh.layout, model_heads(self.config), (1 + guided,))
        layout = self.mesh.layout.for_branches(1 + guided)
        branches = (0, 1) if guided else (0,)
        pack_branches = partial(
            pack,
            latent_size,
            audio_length,
            conditioning,
            use_ref_for_uncond=use_ref_for_uncond,
            interpolation=self.config.data_proxy.spatial_rope_interpolation,
            pad_to_multiple=pad_to_multiple,
        )
        parts = [(branch,) for branch in branches] if layout.cfg == 2 else [branches]
        packings = [pack_branches(branches=part) for part in parts]
        pieces = [piece for packing in packings for piece in _pieces(packing, layout.cp)]
        features = static_features(conditioning, use_ref_for_uncond=use_ref_for_uncond)
        clip = ClipSize(latent_size, audio_length, len(branches))
        local = self.lay_out(pieces[self.mesh.rank], features, clip)
        own = packings[self.mesh.rank // layout.cp]
        return RankLayout(
            **{entry.name: getattr(local, entry.name) for entry in fields(ClipLayout) if entry.name != "sequences"},
            sequences=sequences(own.bounds, self.device),
            group=self.mesh.cp if layout.cp == self.mesh.cp.size else self.mesh.world,
            token_counts=tuple(piece.num_tokens for piece in pieces),
            video_counts=tuple(piece.count(Source.VIDEO) for piece in pieces),
            audio_counts=tuple(piece.count(Source.AUDIO) for piece in pieces),
        )

    def forward(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
        """The velocities of the single model, the same on every rank."""
        self._check_latents(video, audio, layout)
        if not isinstance(layout, RankLayout):
            raise ContractError("the clip was prepared by a model on one rank")
        self._ranks.clip = layout
        streams = self.embed(latent_rows(video), audio[0].float(), timestep, layout)
        rows = self.velocity_rows(self.block(streams, layout), layout)
        return unpack(*self._gather(*rows, layout), layout)

    def _gather(self, video_rows: Tensor, audio_rows: Tensor, layout: RankLayout) -> tuple[Tensor, Tensor]:
        """All ranks' velocity rows, in packed order. Both kinds go in one collective."""
        video_width, audio_width = video_rows.shape[1], audio_rows.shape[1]
        sizes = [
            (videos * video_width, audios * audio_width)
            for videos, audios in zip(layout.video_counts, layout.audio_counts, strict=True)
        ]
        own = torch.cat([video_rows.flatten(), audio_rows.flatten()])
        everything = self.mesh.world.gather_rows(own, [sum(pair) for pair in sizes], name=VELOCITIES)
        parts = torch.split(everything, [size for pair in sizes for size in pair])
        return torch.cat(parts[0::2]).view(-1, video_width), torch.cat(parts[1::2]).view(-1, audio_width)


def _pieces(packing: Packing, count: int) -> list[Packing]:
    """Neighbouring pieces of a sequence, one for each rank."""
    if packing.num_tokens < count:
        raise ContractError(f"{packing.num_tokens} tokens cannot be shared by {count} ranks")
    lengths = even_split(packing.num_tokens, count)
    return [packing.piece(start, start + length) for start, length in zip(starts(lengths), lengths, strict=True)]


class _RankOps:
    """The steps of a layer that need other ranks. `clip` is the one under way."""

    clip: RankLayout

    def __init__(self, mesh: Mesh, num_moe_heads: int) -> None:
        self._mesh = mesh
        self._buffers = Buffers()
        self._experts = ExpertExchange(mesh.ep, Places(num_moe_heads, mesh.ep.size), self._buffers)
        self._inner = PreviewOps()

    @property
    def _heads(self) -> HeadExchange:
        """Between the ranks that share the sequence of the clip under way."""
        return HeadExchange(self.clip.group, self._buffers)

    def table(self, inner: PreviewOps) -> PreviewOps:
        """`inner` with the exchanges around it."""
        self._inner = inner
        table = replace(inner, start_experts=self.start_experts, tokens_travel=True)
        if self._mesh.world.size > 1:
            table = replace(table, packed_heads=self.packed_heads, attend=self.attend)
            table = replace(table, gated_attention=self.gated_attention)
        return table

    def packed_heads(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        rope: Tensor,
        to_packed: Tensor,
        group_sizes: Sizes,
        num_heads: tuple[int, int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of the own tokens as parts of what `attend` will send: [P, S, H/P, d] and twice [P, S, G/P, d].

        A rank that holds a whole sequence has them as one device does.
        """
        ranks = self.clip.group.size
        if ranks == 1:
            return self._inner.packed_heads(qkv, q_weight, k_weight, rope, to_packed, group_sizes, num_heads)
        kinds = [count // ranks for count in (num_heads[0], num_heads[1], num_heads[1])]
        dim = qkv.shape[1] // (num_heads[0] + 2 * num_heads[1])
        self._outbox = self._heads.outbox(qkv.shape[0], sum(kinds), dim, qkv)
        self._inner.head_blocks(qkv, q_weight, k_weight, rope, to_packed, group_sizes, num_heads, self._outbox)
        q, k, v = torch.split(self._outbox, kinds, dim=2)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, spans: Sequences, softcap: float) -> Tensor:
        """Attention of the own tokens over all tokens of the sequence, by blocks of heads: [P, S, H/P, d]."""
        group = self.clip.group
        lengths = self.clip.counts_of(group.ranks)
        kinds = [tensor.shape[2] for tensor in (q, k, v)]
        q, k, v = torch.split(self._heads.to_heads(self._outbox, lengths), kinds, dim=1)
        own_sinks = sinks.chunk(group.size, dim=1)[group.rank]
        out = self._inner.attend(q, k, v, own_sinks, spans, softcap)
        return self._heads.to_tokens(out.contiguous(), lengths)

    def gated_attention(
        self,
        ops: PreviewOps,
        heads: tuple[Tensor, Tensor, Tensor],
        sinks: Tensor,
        spans: Sequences,
        softcap: float,
        gate_logits: Tensor,
        to_grouped: Tensor,
    ) -> Tensor:
        """The gated heads of the own tokens; as one device has them where the rank holds a whole sequence."""
        chosen = self._inner if self.clip.group.size == 1 else ops
        return self._inner.gated_attention(chosen, heads, sinks, spans, softcap, gate_logits, to_grouped)

    def start_experts(self, experts: HeldExperts, x: Tensor) -> ExpertRun:
        """Send tokens [S, M, D] to the ranks that hold their experts."""
        if self._mesh.ep.size == 1:
            return LocalRun(experts, x)
        return self._experts.start(x, self.clip.counts_of(self._mesh.ep.ranks), experts)
