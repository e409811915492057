"""The layers' heavy steps by Triton kernels, and the weight layouts they want."""

# Shapes: N tokens in grouped order, n streams, c hidden size, M MoE heads, E experts per head, D head dim, F width

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from magi2.kernels import experts, mhc, routing, rows, sorting
from magi2.kernels.attention import Attend, attention_refusal, best_attention
from magi2.kernels.limits import log_refusals
from magi2.kernels.proof import expert_features, fp8_expert_features
from magi2.kernels.settings import ExpertSettings, Features, expert_settings, features
from magi2.models.preview import attention, fp8_ops, moe
from magi2.models.preview.config import BF16, FP8, Weights
from magi2.models.preview.expert_share import ExpertShare, whole_heads
from magi2.models.preview.kernel_fit import step_refusals
from magi2.models.preview.mhc import MhcCoefficients, MhcWeights
from magi2.models.preview.mlp import MultiHeadMoe, SparseMlp
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.ops import ExpertBranches, PreviewOps, Sizes, gated_attention, sum_branches
from magi2.models.preview.quantised import QuantisedExperts


def use_fast_ops(model: PreviewModel) -> None:
    """Let `model` compute with kernels: lays out its weights in place, then replaces the table of every layer.

    Steps whose kernels do not take the model's shapes stay plain, with one warning that names them all. Parameters keep
    names, shapes and values, but become views of fused storage; one layer's experts are held twice for the moment of
    their change. For inference only. Waits for the device.
    """
    refusals = _refusals(model)
    log_refusals("preview", refusals)
    if not refusals.keys() & {"run_experts", "run_quantised_experts"}:
        _prove_experts(model)
    for module in model.modules():
        if isinstance(module, MultiHeadMoe) and not module.is_quantised and "run_experts" not in refusals:
            lay_out_experts_(module)
        elif isinstance(module, SparseMlp) and model.weights != FP8:
            fuse_linears_(module)
    model.use_ops(fast_ops(refusals, model.weights))


def _refusals(model: PreviewModel) -> dict[str, str]:
    """The steps that stay plain, with the reason: by the shapes of this rank, or for want of a library."""
    config, dtype, device = model.config, model.compute_dtype, model.device
    # Every sparse layer holds the same experts.
    share = next((module.share for module in model.modules() if isinstance(module, MultiHeadMoe)), None)
    available = features(device)
    fit = partial(step_refusals, config, dtype, available, share=share, weights=model.weights)
    refusals = {step: reason for ranks in model.attention_ranks for step, reason in fit(attention_ranks=ranks).items()}
    product = fp8_ops.linear_refusal(config, dtype, device, available) if model.weights == FP8 else None
    if product:
        refusals["quantised_linear"] = product
    library = attention_refusal(config.head_dim, config.num_heads // config.num_query_groups, dtype, device)
    return {"attend": library, **refusals} if library else refusals


def _prove_experts(model: PreviewModel) -> None:
    """Ask which expert kernel to use, so that no step waits for the answer."""
    config, moe_config = model.config, model.config.moe_config
    if moe_config.moe_layers:
        head_dim = config.split_merge_size // moe_config.num_heads
        shape = (head_dim, moe_config.expert_intermediate_size, moe_config.num_experts, moe_config.top_k)
        prove = expert_features if model.weights == BF16 else fp8_expert_features
        prove(*shape, model.compute_dtype, model.device)


def fast_ops(plain: Collection[str] = (), weights: Weights = BF16) -> PreviewOps:
    """The table of kernels of layers with such `weights`, with its own cache of what it prepares and own workspace.

    The entries named in `plain`, and those that are made of them, are plain torch. If `run_experts` is not one of them,
    the experts' weights must have been through `lay_out_experts_`; attention has no soft cap unless `attend` is.
    """
    stock, names = PreviewOps(), set(plain)
    if "packed_heads" in names:
        names.add("head_blocks")
    if names & {"attend", "gate_heads"}:
        names.add("gated_attention")
    if "quantised_linear" in names:
        weights = BF16  # plain products take the activation as it is
    table = (_Fp8FastOps() if weights == FP8 else _FastOps()).table()
    return replace(table, **{name: getattr(stock, name) for name in names})


def lay_out_experts_(module: MultiHeadMoe) -> None:
    """Store the gate and up weights of the experts as the kernel in use takes them; the parameters may become views."""
    _, settings = _expert_way(module.W_down, module.share.num_experts, module.config.top_k)
    with torch.no_grad():
        gate, up = experts.lay_out(module.W_gate, module.W_up, settings)
    if gate is not module.W_gate:
        module.W_gate = nn.Parameter(gate, requires_grad=False)
        module.W_up = nn.Parameter(up, requires_grad=False)


def _expert_way(w_down: Tensor, num_experts: int, top_k: int) -> tuple[Features, ExpertSettings]:
    """The features to use and the kernel's settings for experts [M*E, F, D]."""
    width, dim = w_down.shape[1:]
    available = expert_features(dim, width, num_experts, top_k, w_down.dtype, w_down.device)
    return available, expert_settings(available, dim, width, w_down.element_size())


def fuse_linears_(module: SparseMlp) -> None:
    """Put weights that share their input, or whose outputs are added, next to each other.

    Split, shared and specific first layers follow one another in one matrix, so that the split, the shared expert
    and the first modality's expert are one product. Shared and specific second layers stand side by side, the shared
    one again for each modality, so that a modality's two experts are one product.
    """
    if _stacked_first(module) is not None:
        return
    with torch.no_grad():
        parts = _first_layers(module)
        views = torch.split(torch.cat(parts), [part.shape[0] for part in parts])
        for linear, view in zip(_FIRST_LAYERS, views, strict=True):
            getattr(module, linear).weight = nn.Parameter(view, requires_grad=False)
        shared, specific = _second_layers(module)
        size, width = shared.shape
        joined = shared.new_empty(specific.shape[0], width + specific.shape[1])
        for start in range(0, specific.shape[0], size):
            joined[start : start + size, :width] = shared
        joined[:, width:] = specific
        module.shared_expert_fc2.weight = nn.Parameter(joined[:size, :width], requires_grad=False)
        module.modality_specific_shared_expert_fc2.weight = nn.Parameter(joined[:, width:], requires_grad=False)


_FIRST_LAYERS = ("split_linear", "shared_expert_fc1", "modality_specific_shared_expert_fc1")


def _first_layers(module: SparseMlp) -> tuple[Tensor, ...]:
    return tuple(getattr(module, name).weight for name in _FIRST_LAYERS)


def _second_layers(module: SparseMlp) -> tuple[Tensor, Tensor]:
    return module.shared_expert_fc2.weight, module.modality_specific_shared_expert_fc2.weight


def _stacked_first(module: SparseMlp) -> Tensor | None:
    """The one matrix of which the first layers are consecutive rows; None when they are not."""
    parts = _first_layers(module)
    size = parts[0].shape[1]
    place = parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != place or part.untyped_storage().data_ptr() != parts[0].untyped_storage().data_ptr():
            return None
        place += part.numel() * part.element_size()
    return parts[0].as_strided((sum(part.shape[0] for part in parts), size), (size, 1))


def _joined_second(module: SparseMlp) -> Tensor:
    """The second layers that `fuse_linears_` has put side by side, one block of rows per modality."""
    shared, specific = _second_layers(module)
    width = shared.shape[1] + specific.shape[1]
    return shared.as_strided((specific.shape[0], width), (width, 1))


class _FastOps:
    """The kernels behind the table, what is derived from weights, and the buffer that the steps share."""

    def __init__(self) -> None:
        self._derived: Any = WeakTensorKeyDictionary()
        self._rows: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def table(self) -> PreviewOps:
        return PreviewOps(
            mhc_coefficients=self.mhc_coefficients,
            mhc_input=self.mhc_input,
            mhc_post=self.mhc_post,
            packed_heads=rows.packed_heads,
            head_blocks=rows.head_blocks,
            attend=self.attend,
            gate_heads=self.gate_heads,
            gated_attention=self.gated_attention,
            swiglu7=self.swiglu7,
            route=self.route,
            run_experts=self.run_experts,
            run_quantised_experts=self.run_quantised_experts,
            sparse_mlp=self.sparse_mlp,
        )

    def derived(self, weight: Tensor, make: Callable[[], Any]) -> Any:
        """What was made from `weight`, made again when the weight has changed or moved."""
        mark = (weight.data_ptr(), weight._version)
        held = self._derived.get(weight)
        if held is None or held[0] != mark:
            held = (mark, make())
            self._derived[weight] = held
        return held[1]

    def mhc_coefficients(
        self, streams: Tensor, norm_weight: Tensor, weights: MhcWeights, group_sizes: Sizes
    ) -> MhcCoefficients:
        prepared = self._phi(norm_weight, weights, streams.dtype)
        return _split(mhc.coefficients(streams.contiguous(), prepared, group_sizes, features(streams.device)))

    def mhc_input(self, streams: Tensor, pre: Tensor, norm_weight: Tensor, group_sizes: Sizes) -> Tensor:
        return mhc.half_input(streams.contiguous(), pre, norm_weight, group_sizes)

    def mhc_post(self, streams: Tensor, res: Tensor, post: Tensor, branch: Tensor) -> Tensor:
        return mhc.update(streams.contiguous(), _joined(res, post), branch.contiguous())

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, sequences: attention.Sequences, softcap: float
    ) -> Tensor:
        out, log_sums = _attention(q, k, softcap)(q, k, v, *_bounds(sequences))
        return rows.fold_sink_(out, log_sums, torch.logsumexp(sinks.float(), dim=0))

    def gated_attention(
        self,
        ops: PreviewOps,
        heads: tuple[Tensor, Tensor, Tensor],
        sinks: Tensor,
        sequences: attention.Sequences,
        softcap: float,
        gate_logits: Tensor,
        to_grouped: Tensor,
    ) -> Tensor:
        """Sink, gate and order in one pass, unless attention is another's, as on many ranks."""
        if ops.attend != self.attend:
            return gated_attention(ops, heads, sinks, sequences, softcap, gate_logits, to_grouped)
        out, log_sums = _attention(heads[0], heads[1], softcap)(*heads, *_bounds(sequences))
        return self.gate_heads(out, gate_logits, to_grouped, (log_sums, torch.logsumexp(sinks.float(), dim=0)))

    def gate_heads(
        self, out: Tensor, gate_logits: Tensor, to_grouped: Tensor, sink: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        return rows.gate_heads(out, gate_logits, to_grouped, sink)

    def swiglu7(self, x: Tensor) -> Tensor:
        return rows.swiglu7_rows(x, x.new_empty(x.shape[0], x.shape[1] // 2))

    def route(self, x: Tensor, gate: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float) -> moe.Routes:
        planes = self.derived(gate, lambda: routing.planes(gate, x.dtype))
        return moe.Routes(*routing.route(x, planes, bias, top_k, normalise, scale))

    def run_experts(
        self,
        x: Tensor,
        routes: moe.Routes,
        w_gate: Tensor,
        w_up: Tensor,
        w_down: Tensor,
        share: ExpertShare | None = None,
    ) -> Tensor:
        num_heads, dim = x.shape[1:]
        share = share or whole_heads(num_heads, w_down.shape[0] // num_heads)
        available, settings = _expert_way(w_down, share.num_experts, routes.expert_ids.shape[2])
        ids, held = routes.expert_ids.int().contiguous(), (share.first_row, share.first_row + share.num_held)
        plan = sorting.sort_routes(ids, share.num_experts, settings.block_rows, *held)
        buffer = self._workspace(ids.numel(), dim, x)
        weights = routes.weights.contiguous()
        experts.expert_rows(x, weights, plan, (w_gate, w_up), w_down, available, settings, buffer)
        return experts.combine(buffer, plan, x.new_empty(x.shape))

    def run_quantised_experts(
        self, x: Tensor, routes: moe.Routes, weights: QuantisedExperts, share: ExpertShare | None = None
    ) -> Tensor:
        share = share or whole_heads(x.shape[1], len(weights.down.values) // x.shape[1])
        buffer = self._workspace(routes.expert_ids.numel(), x.shape[2], x)
        plan = fp8_ops.expert_rows(x, routes, weights, share, buffer)
        return experts.combine(buffer, plan, x.new_empty(x.shape))

    def sparse_mlp(self, mlp: ExpertBranches, y: Tensor, group_sizes: Sizes) -> Tensor:
        stacked = _stacked_first(mlp) if isinstance(mlp, SparseMlp) else None
        if stacked is None or not isinstance(mlp, SparseMlp):
            return sum_branches(mlp, y, group_sizes)
        split = mlp.split_linear.weight.shape[0]
        shared = mlp.shared_expert_fc1.weight.shape[0]
        if mlp.ops.tokens_travel:
            run = mlp.start_experts(mlp.split_heads(y, group_sizes))
            hidden = mlp.ops.swiglu7(_first_products(y, stacked[split:], shared, group_sizes))
        else:
            mixed = _first_products(y, stacked, split + shared, group_sizes)
            run = mlp.start_experts(mixed[:, :split].view(y.shape[0], mlp.num_heads, -1))
            hidden = mlp.ops.swiglu7(mixed[:, split:])
        run.compute()
        out = torch.empty_like(y)
        blocks = _joined_second(mlp).chunk(len(group_sizes))
        for first, size, block in zip(_starts(group_sizes), group_sizes, blocks, strict=True):
            torch.mm(hidden[first : first + size], block.t(), out=out[first : first + size])
        return out.addmm_(run.result().flatten(1), mlp.merge_linear.weight.t())

    def _phi(self, norm_weight: Tensor, weights: MhcWeights, dtype: torch.dtype) -> mhc.PhiWeights:
        alphas = (weights.alpha_pre, weights.alpha_post, weights.alpha_res)
        biases = (weights.bias_pre, weights.bias_post, weights.bias_res)
        prepared: mhc.PhiWeights = self.derived(
            weights.phi, lambda: mhc.phi_weights(norm_weight, weights.phi, alphas, biases, dtype)
        )
        return prepared

    def _workspace(self, count: int, dim: int, like: Tensor) -> Tensor:
        key = (like.device, like.dtype)
        held = self._rows.get(key)
        if held is None or held.numel() < count * dim:
            self._rows[key] = held = like.new_empty(count * dim)
        return held[: count * dim].view(count, dim)


class _Fp8FastOps(_FastOps):
    """The same where all large products are of e4m3 weights."""

    def __init__(self) -> None:
        super().__init__()
        self._fp8 = fp8_ops.Fp8Ops()

    def table(self) -> PreviewOps:
        fp8 = self._fp8
        return replace(
            super().table(),
            mhc_input=fp8.mhc_input,
            gate_heads=fp8.gate_heads,
            swiglu7=fp8.swiglu7,
            quantised_linear=fp8.linear,
            sparse_mlp=fp8.sparse_mlp,
        )

    def gate_heads(
        self, out: Tensor, gate_logits: Tensor, to_grouped: Tensor, sink: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        return self._fp8.gate_heads(out, gate_logits, to_grouped, sink)

    def run_quantised_experts(
        self, x: Tensor, routes: moe.Routes, weights: QuantisedExperts, share: ExpertShare | None = None
    ) -> Tensor:
        share = share or whole_heads(x.shape[1], len(weights.down.values) // x.shape[1])
        buffer = self._workspace(routes.expert_ids.numel(), x.shape[2], x)
        return self._fp8.run_experts(x, routes, weights, share, buffer)


def _attention(q: Tensor, k: Tensor, softcap: float) -> Attend:
    """The library's attention for such heads; the model has asked before."""
    function = best_attention(q.shape[2], q.shape[1] // k.shape[1], q.dtype, q.device)
    if function is None or softcap > 0:
        raise ValueError(f"no attention kernel for {q.dtype}, head dim {q.shape[2]} and soft cap {softcap}")
    return function


def _bounds(sequences: attention.Sequences) -> tuple[tuple[int, ...], Tensor, int]:
    return sequences.bounds, sequences.cu_seqlens, sequences.max_length


def _starts(group_sizes: Sizes) -> list[int]:
    return list(accumulate(group_sizes, initial=0))[:-1]


def _first_products(y: Tensor, stacked: Tensor, common: int, group_sizes: Sizes) -> Tensor:
    """[N, common + own] products of normed tokens with the first `common` rows and those of their own modality.

    One product for the first modality, whose rows follow the common ones, and two for each other one.
    """
    own = (stacked.shape[0] - common) // len(group_sizes)
    mixed = y.new_empty(y.shape[0], common + own)
    for index, (first, size) in enumerate(zip(_starts(group_sizes), group_sizes, strict=True)):
        rows_in, rows_out = y[first : first + size], mixed[first : first + size]
        if size and index == 0:
            torch.mm(rows_in, stacked[: common + own].t(), out=rows_out)
        elif size:
            block = stacked[common + index * own : common + (index + 1) * own]
            torch.mm(rows_in, stacked[:common].t(), out=rows_out[:, :common])
            torch.mm(rows_in, block.t(), out=rows_out[:, common:])
    return mixed


def _split(table: Tensor) -> MhcCoefficients:
    n = mhc.NUM_STREAMS
    pre, post, res = table[:, :n], table[:, n : 2 * n], table[:, 2 * n :]
    return MhcCoefficients(pre, post, res.view(-1, n, n))


def _joined(res: Tensor, post: Tensor) -> Tensor:
    """A table [N, 24] that holds post and res in their places: the one that `_split` took apart, or a new one."""
    n, width = mhc.NUM_STREAMS, mhc.COEFFICIENTS
    same_rows = post.stride() == (width, 1) and res.stride() == (width, n, 1)
    if same_rows and res.data_ptr() == post.data_ptr() + n * post.element_size() and post.storage_offset() >= n:
        return post.as_strided((post.shape[0], width), (width, 1), post.storage_offset() - n)
    return torch.cat([post, post, res.flatten(1)], dim=1)
