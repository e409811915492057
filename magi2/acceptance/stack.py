"""Denoising steps of a stack of preview layers of full width, on one rank or many: model, guidance and both solvers."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import count, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from magi2 import platform
from magi2.acceptance.measure import Mark, mark, settle
from magi2.acceptance.preview_shapes import AUDIO_ROWS, TEXT_ROWS, random_
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.mlp import SparseMlp
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.parallelize import ParallelPreview
from magi2.parallel.mesh import Mesh
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.preview import denoise_preview

RUNS_COMPARED = 4
"""Times that a model is asked again for what it gave other bits of: what happens seldom may not come at once."""
FEWEST_LAYERS = 3
"""Of a stack: a dense one at both ends and a sparse one between them."""


def stack(config: PreviewConfig, layers: int) -> PreviewConfig:
    """The architecture with so many layers, dense ones at both ends as released."""
    if layers >= config.num_layers:
        return config
    ends = 2 if layers > 4 else 1
    dense = (*range(ends), *range(layers - ends, layers))
    sparse = tuple(range(ends, layers - ends))
    return replace(config, num_layers=layers, mm_layers=dense, moe_config=replace(config.moe_config, moe_layers=sparse))


def build(
    mesh: Mesh, config: PreviewConfig, dtype: torch.dtype = torch.bfloat16, weights: Weights = BF16
) -> PreviewModel:
    """The model with random weights on this rank's device, with kernels where the platform has them.

    Ranks of the same experts have equal ones, and all other weights are shared. FP8 weights are made in FP8, a part of
    a tensor at a time.
    """
    torch.manual_seed(1 + mesh.ep.rank)
    with torch.device("meta"):
        is_alone = mesh.layout.num_ranks == 1
        model = (
            PreviewModel(config, compute_dtype=dtype, weights=weights)
            if is_alone
            else ParallelPreview(config, mesh, compute_dtype=dtype, weights=weights)
        )
    model.to_empty(device=mesh.device)
    random_(model)
    for name, tensor in model.state_dict().items() if not is_alone else ():
        if ".moe_mlp." not in name:
            dist.broadcast(tensor, src=0)
    return with_kernels(model.requires_grad_(False).eval())


def with_kernels(model: PreviewModel) -> PreviewModel:
    """The model, computing as in a render: by kernels where the platform has Triton."""
    if platform.current(model.device.type).triton:
        # Here: a CPU machine need not have Triton.
        from magi2.models.preview.fast_ops import use_fast_ops

        use_fast_ops(model)
    return model


class Watched:
    """The model, with a mark of the device and the host's clock on either side of each call."""

    def __init__(self, model: PreviewModel) -> None:
        self._model = model
        self.begun: list[Mark] = []
        self.ended: list[Mark] = []
        self.host_begun: list[float] = []
        self.host_ended: list[float] = []

    def __call__(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
        device = self._model.device
        self.host_begun.append(time.perf_counter())
        self.begun.append(mark(device))
        velocities: tuple[Tensor, Tensor] = self._model(video, audio, timestep, layout)
        self.ended.append(mark(device))
        self.host_ended.append(time.perf_counter())
        return velocities

    def step_ms(self, warm_up: int) -> float:
        """Median of the steps behind the first ones: from one call to the next."""
        return statistics.median(begin.elapsed_time(end) for begin, end in pairwise(self.begun[warm_up:]))

    def forward_ms(self, warm_up: int) -> float:
        """Median of the calls themselves."""
        spans = zip(self.begun[warm_up:], self.ended[warm_up:], strict=True)
        return statistics.median(begin.elapsed_time(end) for begin, end in spans)


@dataclass(frozen=True)
class Denoised:
    """What some steps gave: both latents, and the watched model."""

    latents: tuple[Tensor, Tensor]
    watched: Watched

    @property
    def digest(self) -> str:
        """SHA-256 of all latents."""
        return digest_of(self.latents)

    def distance(self, other: Denoised) -> tuple[float, float]:
        """Which share of the values differs from another's, and the largest difference."""
        ours, theirs = (torch.cat([part.flatten() for part in each.latents]) for each in (self, other))
        return float((ours != theirs).float().mean()), float((ours - theirs).abs().max())

    @property
    def is_finite(self) -> bool:
        """Whether every value is."""
        return all(bool(part.isfinite().all()) for part in self.latents)


def denoise(
    model: PreviewModel,
    size: tuple[int, int, int],
    steps: int,
    *,
    audio_rows: int = AUDIO_ROWS,
    text_rows: int = TEXT_ROWS,
    shift: float = 7.0,
) -> Denoised:
    """Guided steps from seeded noise and random texts. A step lasts from one call of the model to the next, so ask for
    one more than shall be measured."""
    torch.manual_seed(2)
    device, config = model.device, model.config
    text, negative = torch.randn(2, 1, text_rows, config.text_in_channels, device=device).unbind()
    video = torch.randn(1, config.video_in_channels, *size, device=device)
    audio = torch.randn(1, audio_rows, config.audio_in_channels, device=device)
    watched = Watched(model)
    with torch.no_grad():
        layout = model.prepare(size, audio_rows, Conditioning(text, negative))
        latents = denoise_preview(
            watched, layout, video, audio, num_steps=steps, shift=shift, guidance=GuidanceConfig()
        )
    settle(device)
    return Denoised(latents, watched)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


Wrap = Callable[[Callable[..., Any], int, str], Callable[..., Any]]
"""Gives what is called in place of a layer's function; the layer's number and the name of the part are told."""


@contextmanager
def wrapped_parts(model: PreviewModel, wrap: Wrap, *, coefficients: bool = False) -> Iterator[None]:
    """The model with its layers, and in them attention and MLP from norm to projection, called through `wrap`.

    With `coefficients` those of the hyper-connections, too, of which there are two in a layer.
    """
    wrapped = []
    for number, layer in enumerate(model.block.layers):
        kind = "sparse" if isinstance(layer.mlp, SparseMlp) else "dense"
        parts = [
            (layer, "forward", f"{kind}_layer"),
            (layer.attention, "from_normed", f"{kind}_attention"),
            (layer.mlp, "from_normed", f"{kind}_mlp"),
        ]
        if coefficients:
            parts.append((layer, "_coefficients", f"{kind}_coefficients"))
        for owner, method, part in parts:
            setattr(owner, method, wrap(getattr(owner, method), number, part))
            wrapped.append((owner, method))
    try:
        yield
    finally:
        for owner, method in wrapped:
            delattr(owner, method)  # the class's own comes to light again


class Parts:
    """Marks around the parts of a preview's layers, while they are watched."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[Mark, Mark]]] = {}

    @contextmanager
    def watching(self, model: PreviewModel) -> Iterator[None]:
        """Watch layers, and in them attention and MLP, from norm to projection."""
        device = model.device
        with wrapped_parts(model, lambda function, number, part: self._around(function, part, device)):
            yield

    def ms(self) -> dict[str, float]:
        """Part to the median of its calls."""
        return {
            part: statistics.median(begin.elapsed_time(end) for begin, end in spans)
            for part, spans in sorted(self._spans.items())
        }

    def _around(self, function: Callable[..., Any], part: str, device: torch.device) -> Callable[..., Any]:
        spans = self._spans.setdefault(part, [])

        @wraps(function)
        def call(*arguments: Any) -> Any:
            begin = mark(device)
            result = function(*arguments)
            spans.append((begin, mark(device)))
            return result

        return call


def first_difference(model: PreviewModel, size: tuple[int, int, int], **rows: int) -> str | None:
    """The first part of a layer that gives other bits for the same noise in one of some runs; None when all repeat."""
    first = _sums(model, size, **rows)
    for _ in range(RUNS_COMPARED):
        again = _sums(model, size, **rows)
        for place, total in first.items():
            if total != again[place]:
                return "layer {}, {}".format(*place)
    return None


def _sums(model: PreviewModel, size: tuple[int, int, int], **rows: int) -> dict[tuple[int, str, int], int]:
    """The sum of the bits of every part's output in one forward, by layer, part and call, in the order of the calls."""
    sums: dict[tuple[int, str, int], Tensor] = {}

    def wrap(function: Callable[..., Any], number: int, part: str) -> Callable[..., Any]:
        calls = count()

        @wraps(function)
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            tensors = (result,) if isinstance(result, Tensor) else tuple(result)
            sums[number, part, next(calls)] = torch.stack([_bits(tensor) for tensor in tensors]).sum()
            return result

        return call

    with wrapped_parts(model, wrap, coefficients=True):
        denoise(model, size, 1, **rows)
    return {place: int(total) for place, total in sums.items()}


def _bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, taken as whole numbers."""
    bits = tensor.detach().contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)
    return bits.sum(dtype=torch.int64)
