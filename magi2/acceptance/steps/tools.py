"""What computes here: the accelerators, libraries and programs, and whether each can do its part."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from magi2 import platform
from magi2.acceptance.measure import GIB, measure_ceilings, release
from magi2.acceptance.plan import Difference, Figure, Found
from magi2.acceptance.site import Site
from magi2.errors import MissingToolError
from magi2.kernels.installed import installed
from magi2.media.fitness import fit_ffmpeg
from magi2.stages.software import kernels_of


def run(site: Site) -> Iterator[Found]:
    """Versions, the card's own ceilings, what computes the profiles' models, and a ffmpeg that delivers them."""
    accelerator = site.accelerator
    yield Figure("python", ".".join(map(str, sys.version_info[:3])))
    for name, version in installed().items():
        yield Figure(name, version)
    yield Figure("accelerator", accelerator.name)
    yield Figure("accelerators", platform.device_count(accelerator=accelerator))
    yield Figure("memory", round(platform.memory_stats(accelerator=accelerator).total / GIB, 1), "GiB")
    yield Figure("collectives", accelerator.collective_backend)
    yield Figure("processors", len(os.sched_getaffinity(0)))
    if accelerator.name == "musa" and find_spec("torchada") is None:
        yield Difference("torchada is missing: pip install 'magi2[musa]'")
    yield from _ceilings(site)
    yield Figure("kernels", kernels_of(site.profiles[0], site.settings))
    yield from _ffmpeg(site)


def _ceilings(site: Site) -> Iterator[Found]:
    if site.accelerator.name == "cpu":
        return
    limits = measure_ceilings(site.device)
    release()
    yield Figure("copy", round(limits.bytes_per_s / 1e12, 3), "TB/s")
    yield Figure("bf16 product", round(limits.flops_per_s / 1e12, 1), "TFLOP/s")


def _ffmpeg(site: Site) -> Iterator[Found]:
    try:
        ffmpeg = fit_ffmpeg(site.settings.ffmpeg, *{profile.delivery for profile in site.profiles})
    except MissingToolError as error:
        yield Difference(str(error))
        return
    yield Figure("ffmpeg", ffmpeg.version)
    if ffmpeg.passed_over:
        yield Figure("ffmpeg passed over", str(ffmpeg.passed_over))
