"""The refiner on many ranks: each computes its part of the latent grid and fetches the keys of the seam around it.

A rank holds the tokens of a compact set of blocks and a share of the tail (text and audio). In every layer it sends its
blocks' keys and values to the ranks that see them. Every rank takes the queries of the whole tail over its own keys;
the tail's owners add these parts up. docs/parallel.md compares the bytes with those of an exchange by heads.
With two guidance halves each half of the ranks computes one branch.
"""

# Shapes: S tokens of this rank (N video tokens, then its tail share), T tail tokens of all ranks, H query heads,
# G key-value heads, d head size, P ranks, C channels

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import RefinerContext
from magi2.models.refiner.model import RefinerModel, to_raster, token_runs
from magi2.models.refiner.partial import attend_with_log_sums, sum_parts
from magi2.models.refiner.partition import GridPart, grid_part, partition_blocks
from magi2.models.refiner.windows import WindowGrid
from magi2.parallel.collectives import Group, Pending, even_split, starts
from magi2.parallel.mesh import Mesh


class ParallelRefiner:
    """A refiner of one rank and its place in the mesh; the interface is that of `RefinerModel`, without gradients.

    Latents and text are whole on every rank, and so are the velocities that come back.
    """

    def __init__(self, model: RefinerModel, mesh: Mesh) -> None:
        self.model, self.mesh = model, mesh

    def prepare_grid(self, size: tuple[int, int, int]) -> GridPart:
        """This rank's part of a latent grid (T, H, W), once per clip size."""
        whole = self.model.prepare_grid(size)
        blocks_of = partition_blocks(whole, self.mesh.cp.size, _linear_keys(self.model.config))
        return grid_part(whole, blocks_of, self.mesh.cp.rank)

    @torch.no_grad()
    def prepare(self, grid: WindowGrid, text_embeds: Tensor, audio: Tensor | None = None) -> RefinerContext:
        """All that text [1, L, C] and audio latents [1, A, 64] decide on this rank, and its exchange buffers."""
        if not isinstance(grid, GridPart):
            raise ContractError("the grid of a refiner on many ranks comes from its prepare_grid")
        whole = self.model.prepare(grid, text_embeds, audio)
        group, num_video = self.mesh.cp, grid.num_tokens
        if group.size == 1:
            return whole
        lengths = even_split(len(whole.tail), group.size)
        first = starts(lengths)[group.rank]
        last = first + lengths[group.rank]
        num_audio = max(0, min(last, whole.num_audio) - first)
        counts = (num_video, num_audio, last - first - num_audio)
        rope = whole.rope
        mine = {
            "tail": whole.tail[first:last],
            "rope": torch.cat([rope[:num_video], rope[num_video + first : num_video + last]]),
            "num_audio": num_audio,
            "shared_runs": token_runs((sum(counts),)),
            "modality_runs": token_runs(counts),
        }
        exchange = KeyExchange(group, grid, lengths, self.model.config, whole.tail)
        return PartContext(**vars(whole) | mine, exchange=exchange)

    @torch.no_grad()
    def __call__(self, latents: Tensor, context: RefinerContext) -> Tensor:
        """Video velocity [1, C, T, H, W] fp32 of fp32 latents of that shape, on every rank."""
        part = _part(context)
        rows = self.model.video_rows(self.model.hidden_states(latents, context), context)
        return to_raster(self.mesh.cp.gather_rows(rows, part.token_counts, name="refiner.velocity"), part)

    @torch.no_grad()
    def velocity_pair(
        self, latents: Tensor, prompt_context: RefinerContext, negative_context: RefinerContext
    ) -> tuple[Tensor, Tensor]:
        """The velocities under both texts; with two guidance halves they are computed at the same time."""
        if self.mesh.branch is None:
            return self(latents, prompt_context), self(latents, negative_context)
        context = (prompt_context, negative_context)[self.mesh.branch]
        part = _part(context)
        rows = self.model.video_rows(self.model.hidden_states(latents, context), context)
        both = self.mesh.world.gather_rows(rows, part.token_counts * 2, name="refiner.velocity")
        conditional, unconditional = both.chunk(2)
        return to_raster(conditional, part), to_raster(unconditional, part)


def _part(context: RefinerContext) -> GridPart:
    if not isinstance(context.grid, GridPart):
        raise ContractError("the context of a refiner on many ranks comes from its prepare")
    return context.grid


def _linear_keys(config: RefinerConfig) -> float:
    """Keys that cost a query as much attention as one token's linear maps do in one layer."""
    hidden, d = config.hidden_size, config.head_dim
    heads = 2 * config.num_heads + 2 * config.num_query_groups
    return hidden * (heads * d + 3 * config.intermediate_size) / (2 * hidden)


@dataclass(frozen=True, eq=False)
class PartContext(RefinerContext):
    """A context whose keys lie on several ranks."""

    exchange: KeyExchange

    def attend(self, q_SHd: Tensor, k_SGd: Tensor, v_SGd: Tensor) -> Tensor:
        """Windowed attention [S, H, d] of this rank's queries over the keys of all ranks."""
        num_video, exchange = self.grid.num_tokens, self.exchange
        gathering = exchange.gather_tail(q_SHd[num_video:], k_SGd[num_video:], v_SGd[num_video:])
        fetching = exchange.fetch_keys(k_SGd, v_SGd)
        gathering.wait()
        # The tail's queries over what is here, while the seam's keys are on their way.
        summing = exchange.send_parts(*attend_with_log_sums(exchange.take_tail(), k_SGd, v_SGd))
        fetching.wait()
        video_NHd = super().attend(q_SHd[:num_video], exchange.keys, exchange.values)
        summing.wait()
        return torch.cat([video_NHd, exchange.tail_result()])


class KeyExchange:
    """Buffers of one context, made once, and what every layer exchanges through them.

    `keys` and `values` [video keys of the part + T, G, d] are what this rank's video queries attend to.
    """

    def __init__(
        self, group: Group, part: GridPart, tail_lengths: tuple[int, ...], config: RefinerConfig, like: Tensor
    ) -> None:
        self._group, self._part, self._tail_lengths = group, part, tail_lengths
        self._head_counts = [config.num_heads, config.num_query_groups, config.num_query_groups]
        heads, groups, _ = self._head_counts
        own, total = tail_lengths[group.rank], sum(tail_lengths)

        def rows(count: int, heads: int) -> Tensor:
            return like.new_empty(count, heads, config.head_dim)

        self.keys, self.values = (rows(part.num_key_tokens + total, groups) for _ in range(2))
        self._sent_keys, self._sent_values = (rows(len(part.send), groups) for _ in range(2))
        self._sent_tail, self._tail = rows(group.size * own, heads + 2 * groups), rows(total, heads + 2 * groups)
        self._parts = rows(group.size * own, heads)
        self._sums = like.new_empty(group.size * own, heads, dtype=torch.float32)

    def gather_tail(self, q_THd: Tensor, k_TGd: Tensor, v_TGd: Tensor) -> Pending:
        """Begin to give this rank's tail rows to all ranks."""
        own = self._tail_lengths[self._group.rank]
        copies = self._by_rank(self._sent_tail)
        for copy, rows in zip(torch.split(copies, self._head_counts, dim=2), (q_THd, k_TGd, v_TGd), strict=True):
            copy.copy_(rows.expand(copy.shape))
        return self._group.all_to_all(
            self._tail, self._sent_tail, self._tail_lengths, [own] * self._group.size, name="refiner.tail"
        )

    def take_tail(self) -> Tensor:
        """The queries [T, H, d] of the whole tail; its keys take their place behind the video's."""
        q_THd, k_TGd, v_TGd = torch.split(self._tail, self._head_counts, dim=1)
        self.keys[self._part.num_key_tokens :] = k_TGd
        self.values[self._part.num_key_tokens :] = v_TGd
        return q_THd.contiguous()

    def fetch_keys(self, k_SGd: Tensor, v_SGd: Tensor) -> Pending:
        """Begin to bring this rank's keys and values, and those of its seam, into `keys` and `values`."""
        part, works = self._part, []
        for mine, sent, all_rows in ((k_SGd, self._sent_keys, self.keys), (v_SGd, self._sent_values, self.values)):
            torch.index_select(mine, 0, part.send, out=sent)
            all_rows[: part.num_tokens] = mine[: part.num_tokens]
            seam = all_rows[part.num_tokens : part.num_key_tokens]
            works.append(self._group.all_to_all(seam, sent, part.receive_rows, part.send_rows, name="refiner.seam"))
        return Pending(tuple(work for pending in works for work in pending.works), self._group.meter)

    def send_parts(self, out_THd: Tensor, sums_TH: Tensor) -> Pending:
        """Begin to send what the tail's queries found here to the ranks that own them."""
        own = [self._tail_lengths[self._group.rank]] * self._group.size
        works = [
            self._group.all_to_all(received, sent.contiguous(), own, self._tail_lengths, name="refiner.tail")
            for received, sent in ((self._parts, out_THd), (self._sums, sums_TH))
        ]
        return Pending(tuple(work for pending in works for work in pending.works), self._group.meter)

    def tail_result(self) -> Tensor:
        """Attention [own tail rows, H, d] over all keys."""
        return sum_parts(self._by_rank(self._parts), self._by_rank(self._sums))

    def _by_rank(self, rows: Tensor) -> Tensor:
        """Rows of every rank, one after the other's, as [P, rows of a rank, ...]."""
        return rows.view(self._group.size, self._tail_lengths[self._group.rank], *rows.shape[1:])
