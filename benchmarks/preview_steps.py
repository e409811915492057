"""Ten denoising steps of a 20-layer stack of full width, end to end on one device: model, guidance and both solvers.

Half of the released depth, because its 114B parameters do not fit one device; dense and sparse layers at both ends as
released. Random weights are made on the device.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from magi2.acceptance.measure import GIB, Result
from magi2.acceptance.preview_shapes import CONFIG
from magi2.acceptance.stack import Denoised, build, denoise, stack
from magi2.parallel.mesh import Mesh

LAYERS, STEPS, SHIFT = 20, 10, 5.0
LATENT_SIZE = (32, 16, 28)
STACK = stack(CONFIG, LAYERS)


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
    model = build(Mesh.single(device), STACK)
    torch.cuda.reset_peak_memory_stats(device)
    return _summary(denoise(model, LATENT_SIZE, STEPS, shift=SHIFT), device)


def _summary(found: Denoised, device: torch.device) -> Steps:
    watched = found.watched
    later = range(2, STEPS)
    return Steps(
        step=watched.step_ms(2),
        forward=watched.forward_ms(2),
        between=statistics.median([watched.ended[i - 1].elapsed_time(watched.begun[i]) for i in later]),
        host_step=statistics.median([1e3 * (watched.host_ended[i] - watched.host_begun[i]) for i in later]),
        host_between=statistics.median([1e3 * (watched.host_begun[i] - watched.host_ended[i - 1]) for i in later]),
        peak=torch.cuda.max_memory_allocated(device) / GIB,
        finite=found.is_finite,
    )


def as_result(steps: Steps, sparse: Result, dense: Result) -> Result:
    """The step beside its floor; what its layers take alone is printed."""
    count = len(STACK.mm_layers)
    alone = (LAYERS - count) * sparse.ms + count * dense.ms
    print(f"sum of the layers measured alone: {alone:.1f} ms, step {steps.step:.1f} ms", flush=True)
    return Result("stack_step", sparse.tokens, steps.step, (LAYERS - count) * sparse.floor_ms + count * dense.floor_ms)
