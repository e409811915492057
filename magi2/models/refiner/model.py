"""The refiner: a dense transformer over video, audio and text tokens that removes noise from an enlarged latent.

It reads no timestep, sigma, rate or size: only latents, positions and text. Attention is joint but windowed for video;
the first and last layers hold one set of weights per modality.

Source: MAGI-2 preview inference code, refiner transformer.
"""

# Shapes: S tokens (video in block order, audio, text), D hidden, T tail tokens (audio, text), H query heads,
# G key-value heads, d head size, R rotary angles, A audio rows, L text rows, C channels.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.layers import NUM_MODALITIES, rms_norm, rope_table
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import RefinerContext, Run
from magi2.models.refiner.ops import Heads, RefinerOps
from magi2.models.refiner.positions import audio_coords, text_coords
from magi2.models.refiner.windows import WindowGrid, window_grid

# Token-wise work runs in chunks: the fp32 copy of the MLP's inner rows would be 45 GB at the delivery size.
CHUNK_TOKENS = 16384


class StackedLinear(nn.Module):
    """Bias-free linear maps of several experts, stacked along the first axis of one weight."""

    def __init__(self, in_features: int, out_features: int, experts: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts * out_features, in_features, dtype=dtype))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(x, self.weight.view(self.experts, -1, x.shape[-1])[expert])


class StackedNorm(nn.Module):
    """RMS norms of several experts; their fp32 scales (1 + weight) are stacked."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts * dim))

    def of(self, expert: int) -> Tensor:
        """The scales of one expert."""
        return self.weight.view(self.experts, -1)[expert]

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.of(0))


class Attention(nn.Module):
    """Gated grouped-query attention; gives the branch before it is added to the residual."""

    def __init__(self, config: RefinerConfig, experts: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.ops = RefinerOps()
        self.head_dim, self.dtype, self.experts = config.head_dim, dtype, experts
        heads, groups, hidden = config.num_heads, config.num_query_groups, config.hidden_size
        self.head_counts = [heads, groups, groups]
        self.pre_norm = StackedNorm(hidden, experts)
        self.linear_qkv = StackedLinear(hidden, (heads + 2 * groups) * config.head_dim, experts, dtype)
        self.linear_g = StackedLinear(hidden, heads, experts, dtype)
        self.linear_proj = StackedLinear(hidden, hidden, experts, dtype)
        self.q_norm = StackedNorm(config.head_dim, experts)
        self.k_norm = StackedNorm(config.head_dim, experts)

    def forward(self, x_SD: Tensor, context: RefinerContext) -> Tensor:
        out_SHd, gate_SH = self.attend(x_SD, context)
        runs = context.runs(self.experts)
        return torch.cat([self.output(out_SHd[a:b], gate_SH[a:b], expert) for expert, a, b in runs])

    def attend(self, x_SD: Tensor, context: RefinerContext) -> tuple[Tensor, Tensor]:
        """What `output` takes of all rows: the heads' results [S, H, d] and the gate's logits [S, H]."""
        # Filled in place: collecting the runs and joining them would hold everything twice.
        rows = len(x_SD)
        q_SHd, k_SGd, v_SGd = (
            torch.empty(rows, heads, self.head_dim, dtype=self.dtype, device=x_SD.device) for heads in self.head_counts
        )
        gate_SH = torch.empty(rows, self.head_counts[0], dtype=self.dtype, device=x_SD.device)
        for expert, a, b in context.runs(self.experts):
            heads = q_SHd[a:b], k_SGd[a:b], v_SGd[a:b]
            gate_SH[a:b] = self._project(x_SD[a:b], context.rope[a:b], expert, heads)
        return context.attend(q_SHd, k_SGd, v_SGd), gate_SH

    def _project(self, x_SD: Tensor, rope_SR: Tensor, expert: int, out: Heads) -> Tensor:
        """Writes queries, keys and values; gives the gate's logits [S, H]."""
        a_SD = self.ops.norm(x_SD, self.pre_norm.of(expert), self.dtype)
        norms = self.q_norm.of(expert), self.k_norm.of(expert)
        self.ops.write_heads(self.linear_qkv(a_SD, expert), *norms, rope_SR, out)
        gate_SH: Tensor = self.linear_g(a_SD, expert)
        return gate_SH

    def output(self, out_SHd: Tensor, gate_SH: Tensor, expert: int) -> Tensor:
        """The branch [S, D] of rows of one expert."""
        branch_SD: Tensor = self.linear_proj(self.ops.gate_heads(out_SHd, gate_SH), expert)
        return branch_SD


class MLP(nn.Module):
    """Clamped gated unit, with the norm before it and the residual around it."""

    def __init__(self, config: RefinerConfig, experts: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.ops = RefinerOps()
        inner = config.intermediate_size
        self.pre_norm = StackedNorm(config.hidden_size, experts)
        self.up_gate_proj = StackedLinear(config.hidden_size, 2 * inner, experts, dtype)
        self.down_proj = StackedLinear(inner, config.hidden_size, experts, dtype)

    def forward(self, x_SD: Tensor, branch_SD: Tensor, expert: int, out_SD: Tensor) -> None:
        """Fills `out_SD` fp32, which may be `x_SD`, with `x + branch` and the unit of that; rows of one expert."""
        a_SD = self.ops.add_norm(x_SD, branch_SD, self.pre_norm.of(expert), out_SD)
        self.ops.add_(out_SD, self.down_proj(self.ops.swiglu7(self.up_gate_proj(a_SD, expert)), expert))


class Layer(nn.Module):
    """Attention and MLP, each with a norm before it; gives the residual in fp32 whatever came in.

    A residual that is fp32 already is added to in place, unless gradients are recorded.
    """

    def __init__(self, config: RefinerConfig, experts: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts = experts
        self.attention = Attention(config, experts, dtype)
        self.mlp = MLP(config, experts, dtype)

    def forward(self, x_SD: Tensor, context: RefinerContext) -> Tensor:
        heads_SHd, gate_SH = self.attention.attend(x_SD, context)
        in_place = x_SD.dtype == torch.float32 and not torch.is_grad_enabled()
        out_SD = x_SD if in_place else torch.empty(x_SD.shape, device=x_SD.device)
        for expert, a, b in context.runs(self.experts):
            branch_SD = self.attention.output(heads_SHd[a:b], gate_SH[a:b], expert)
            self.mlp(x_SD[a:b], branch_SD, expert, out_SD[a:b])
        return out_SD


class Rope(nn.Module):
    """The rotary frequencies: a buffer of the published checkpoint."""

    bands: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        count = head_dim // 8
        # On the CPU even when the model is built on no device: there, `arange` imports torch's compiler for seconds.
        steps = torch.arange(count, dtype=torch.float32, device="cpu")
        self.register_buffer("bands", 10000.0 ** -(steps / count))


class PreAdapter(nn.Module):
    """One fp32 embedder per modality, and the rotary frequencies."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        self.video_embedder = nn.Linear(config.video_in_channels, config.hidden_size, dtype=torch.float32)
        self.audio_embedder = nn.Linear(config.audio_in_channels, config.hidden_size, dtype=torch.float32)
        self.text_embedder = nn.Linear(config.text_in_channels, config.hidden_size, dtype=torch.float32)
        self.rope = Rope(config.head_dim)


class PostAdapter(nn.Module):
    """The fp32 output heads of video and audio; text rows give nothing."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.final_norm_video = StackedNorm(hidden, 1)
        self.final_norm_audio = StackedNorm(hidden, 1)
        self.final_linear_video = StackedLinear(hidden, config.video_in_channels, 1, torch.float32)
        self.final_linear_audio = StackedLinear(hidden, config.audio_in_channels, 1, torch.float32)

    def video(self, x_SD: Tensor) -> Tensor:
        """Velocities [S, C] of video tokens, fp32."""
        rows = torch.split(x_SD.float(), CHUNK_TOKENS)
        return torch.cat([self.final_linear_video(self.final_norm_video(row), 0) for row in rows])

    def audio(self, x_SD: Tensor) -> Tensor:
        """Velocities [A, C] of audio tokens, fp32."""
        out: Tensor = self.final_linear_audio(self.final_norm_audio(x_SD.float()), 0)
        return out


class Trunk(nn.Module):
    """The stack of layers."""

    def __init__(self, config: RefinerConfig, dtype: torch.dtype) -> None:
        super().__init__()
        experts = [NUM_MODALITIES if i in config.mm_layers else 1 for i in range(config.num_layers)]
        self.layers = nn.ModuleList(Layer(config, count, dtype) for count in experts)


class RefinerModel(nn.Module):
    """Velocity of a noisy latent, given a prepared grid and text.

    `compute_dtype` is the dtype of matrices and of everything the published model keeps in bf16. Parameters are
    uninitialised until `load_refiner` or `init_random_` fills them.
    """

    def __init__(self, config: RefinerConfig, *, compute_dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.ops = RefinerOps()
        self.config, self.compute_dtype = config, compute_dtype
        self.pre_adapter = PreAdapter(config)
        self.block = Trunk(config, compute_dtype)
        self.post_adapter = PostAdapter(config)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.pre_adapter.video_embedder.weight.device

    def use_ops(self, ops: RefinerOps) -> None:
        """Let every layer compute its heavy steps with `ops`; contexts prepared before keep the old ones."""
        for module in self.modules():
            if isinstance(module, RefinerModel | Attention | MLP):
                module.ops = ops

    def prepare_grid(self, size: tuple[int, int, int]) -> WindowGrid:
        """Token order, windows and rotary table of a latent grid (T, H, W), once per clip size."""
        if len(size) != 3 or min(size) < 1:
            raise ContractError(f"latent grid is {size}, must be (T, H, W) of at least 1")
        return window_grid(size, self.config.window_block, self.config.window_radius, self.pre_adapter.rope.bands)

    def prepare(self, grid: WindowGrid, text_embeds: Tensor, audio: Tensor | None = None) -> RefinerContext:
        """Everything that text [1, L, C] and audio latents [1, A, 64] decide, once per text of a clip.

        L may be 0. Without `audio` there are no audio tokens, which is the published setting.
        """
        _check(text_embeds, (1, None, self.config.text_in_channels), "text_embeds")
        rows = [self.pre_adapter.text_embedder(text_embeds[0].float())]
        coords = [text_coords(text_embeds.shape[1], text_embeds.device)]
        if audio is not None:
            _check(audio, (1, None, self.config.audio_in_channels), "audio")
            rows.insert(0, self.pre_adapter.audio_embedder(audio[0].float()))
            coords.insert(0, audio_coords(audio.shape[1], audio.device))
        tail = torch.cat(rows).to(self.compute_dtype)
        num_audio = 0 if audio is None else audio.shape[1]
        counts = (grid.num_tokens, num_audio, text_embeds.shape[1])
        return RefinerContext(
            grid=grid,
            tail=tail,
            rope=torch.cat([grid.rope, rope_table(torch.cat(coords), self.pre_adapter.rope.bands)]),
            num_audio=num_audio,
            ops=self.ops,
            plan=self.ops.plan(grid, len(tail)),
            shared_runs=token_runs((sum(counts),)),
            modality_runs=token_runs(counts),
        )

    def forward(self, latents: Tensor, context: RefinerContext) -> Tensor:
        """Video velocity [1, C, T, H, W] fp32 of fp32 latents of that shape."""
        return self.video_velocity(self.hidden_states(latents, context), context)

    def hidden_states(self, latents: Tensor, context: RefinerContext) -> Tensor:
        """The residual stream [S, D] after the last layer, in sequence order."""
        x_SD = self.embed(latents, context)
        for layer in self.block.layers:
            x_SD = layer(x_SD, context)
        return x_SD

    def embed(self, latents: Tensor, context: RefinerContext) -> Tensor:
        """The sequence [S, D] that enters layer 0, compute dtype: block-ordered video, then the tail."""
        grid = context.grid
        _check(latents, (1, self.config.video_in_channels, *grid.size), "latents")
        voxels_NC = latents[0].flatten(1).T.float()
        orders = torch.split(grid.order, CHUNK_TOKENS)
        video = [self.pre_adapter.video_embedder(voxels_NC[order]).to(self.compute_dtype) for order in orders]
        return torch.cat([*video, context.tail])

    def video_velocity(self, hidden_SD: Tensor, context: RefinerContext) -> Tensor:
        """The video head, back in raster order: [1, C, T, H, W] fp32."""
        return to_raster(self.video_rows(hidden_SD, context), context.grid)

    def video_rows(self, hidden_SD: Tensor, context: RefinerContext) -> Tensor:
        """The video head's rows [N, C] fp32, in the order of the context's tokens."""
        rows_NC: Tensor = self.post_adapter.video(hidden_SD[: context.grid.num_tokens])
        return rows_NC

    def audio_velocity(self, hidden_SD: Tensor, context: RefinerContext) -> Tensor:
        """The audio head: [1, A, 64] fp32. The published pipeline makes no use of it."""
        first = context.grid.num_tokens
        return self.post_adapter.audio(hidden_SD[first : first + context.num_audio])[None]


def to_raster(rows_VC: Tensor, grid: WindowGrid) -> Tensor:
    """The rows of all video tokens, in the order of the grid or of its parts, as [1, C, T, H, W]."""
    return rows_VC[grid.restore].T.reshape(1, -1, *grid.size)


def token_runs(counts: tuple[int, ...]) -> tuple[Run, ...]:
    """Chunks of at most CHUNK_TOKENS tokens, none across two of the consecutive segments of `counts` tokens."""
    runs: list[Run] = []
    first = 0
    for expert, count in enumerate(counts):
        starts = range(first, first + count, CHUNK_TOKENS)
        runs.extend((expert, start, min(start + CHUNK_TOKENS, first + count)) for start in starts)
        first += count
    return tuple(runs)


def _check(tensor: Tensor, shape: tuple[int | None, ...], name: str) -> None:
    fits = len(shape) == tensor.ndim and all(want in (None, got) for want, got in zip(shape, tensor.shape, strict=True))
    if not fits:
        wanted = tuple("any" if want is None else want for want in shape)
        raise ContractError(f"refiner {name} has shape {tuple(tensor.shape)}, must be {wanted}")
