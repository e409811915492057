"""Ten denoising steps of a 20-layer stack of full width, end to end on one device: model, guidance and both solvers.

Half of the released depth, because its 114B parameters do not fit one device; dense and sparse layers at both ends as
released. Random weights are made on the device.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import Result
from benchmarks.preview_shapes import AUDIO, TEXT, random_
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import MoeConfig, PreviewConfig
from magi2.models.preview.fast_ops import use_fast_ops
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.preview import denoise_preview

LAYERS, STEPS, SHIFT = 20, 10, 5.0
LATENT_SIZE = (32, 16, 28)
DENSE_LAYERS = (0, 1, LAYERS - 2, LAYERS - 1)
STACK = PreviewConfig(
    num_layers=LAYERS, mm_layers=DENSE_LAYERS, moe_config=MoeConfig(moe_layers=tuple(range(2, LAYERS - 2)))
)


class Watched:
    """The model, with a device event and the host's clock on either side of each call."""

    def __init__(self, model: PreviewModel) -> None:
        self._model = model
        self.begun: list[torch.cuda.Event] = []
        self.ended: list[torch.cuda.Event] = []
        self.host_begun: list[float] = []
        self.host_ended: list[float] = []

    def __call__(self, video: Tensor, audio: Tensor, timestep: Tensor, layout: ClipLayout) -> tuple[Tensor, Tensor]:
        self.host_begun.append(time.perf_counter())
        self.begun.append(_mark())
        velocities: tuple[Tensor, Tensor] = self._model(video, audio, timestep, layout)
        self.ended.append(_mark())
        self.host_ended.append(time.perf_counter())
        return velocities


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass(frozen=True)
class Steps:
    """Medians over the steps but the first two, in milliseconds, and the peak of memory in GiB.

    `between` is what the device does from one forward to the next, `host_between` the host's share of that.
    """

    step: float
    forward: float
    between: float
    host_step: float
    host_between: float
    peak: float
    finite: bool

    def __str__(self) -> str:
        return (
            f"{LAYERS} layers at 272p, {STEPS} steps: step {self.step:.1f} ms, forward {self.forward:.1f} ms, "
            f"between forwards {self.between:.2f} ms on the device and {self.host_between:.2f} ms on the host, "
            f"host issues a step in {self.host_step:.1f} ms, peak {self.peak:.1f} GiB, "
            f"{'all finite' if self.finite else 'NOT FINITE'}"
        )


def run(device: torch.device) -> Steps:
    """Builds the stack and denoises a clip."""
    with torch.device(device):
        model = PreviewModel(STACK)
    random_(model)
    model.requires_grad_(False).eval()
    use_fast_ops(model)
    text, negative = torch.randn(2, 1, TEXT, STACK.text_in_channels, device=device).unbind()
    with torch.no_grad():
        layout = model.prepare(LATENT_SIZE, AUDIO, Conditioning(text, negative))
    video = torch.randn(1, STACK.video_in_channels, *LATENT_SIZE, device=device)
    audio = torch.randn(1, AUDIO, STACK.audio_in_channels, device=device)
    watched = Watched(model)
    torch.cuda.reset_peak_memory_stats(device)
    found = denoise_preview(watched, layout, video, audio, num_steps=STEPS, shift=SHIFT, guidance=GuidanceConfig())
    torch.cuda.synchronize(device)
    return _summary(watched, all(bool(part.isfinite().all()) for part in found), device)


def _summary(watched: Watched, finite: bool, device: torch.device) -> Steps:
    begun, ended = watched.begun, watched.ended
    later = range(2, STEPS)

    def median(spans: list[float]) -> float:
        return statistics.median(spans)

    return Steps(
        step=median([begun[i].elapsed_time(begun[i + 1]) for i in later[:-1]]),
        forward=median([begun[i].elapsed_time(ended[i]) for i in later]),
        between=median([ended[i - 1].elapsed_time(begun[i]) for i in later]),
        host_step=median([1e3 * (watched.host_ended[i] - watched.host_begun[i]) for i in later]),
        host_between=median([1e3 * (watched.host_begun[i] - watched.host_ended[i - 1]) for i in later]),
        peak=torch.cuda.max_memory_allocated(device) / 2**30,
        finite=finite,
    )


def as_result(steps: Steps, sparse: Result, dense: Result) -> Result:
    """The step beside its floor; what its layers take alone is printed."""
    count = len(DENSE_LAYERS)
    alone = (LAYERS - count) * sparse.ms + count * dense.ms
    print(f"sum of the layers measured alone: {alone:.1f} ms, step {steps.step:.1f} ms", flush=True)
    return Result("stack_step", sparse.tokens, steps.step, (LAYERS - count) * sparse.floor_ms + count * dense.floor_ms)
