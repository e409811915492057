"""The set that is measured: torch, Triton, attention library, kernels and ffmpeg, and whether it is the pinned one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from magi2.config.settings import Settings
from magi2.errors import MissingToolError
from magi2.kernels.chosen import CHOSEN
from magi2.kernels.installed import NONE, distribution_version, installed
from magi2.media.ffmpeg import find_ffmpeg

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
COMPARED = ("torch", "triton", "fa3-fwd", "imageio-ffmpeg")


def measured_set(device: torch.device) -> dict[str, str]:
    """What runs here, by name; `kernels` says what models have asked for so far in this process."""
    kernels = ", ".join(f"{step}: {kernel}" for step, kernel in sorted(CHOSEN.items())) or "none asked for"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, **installed(), "kernels": kernels, "ffmpeg": _ffmpeg()}


def _ffmpeg() -> str:
    """Most benchmarks need none."""
    try:
        return find_ffmpeg(Settings.from_environment().ffmpeg).version
    except MissingToolError:
        return NONE


def pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """The pinned version of each distribution."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def differences(pinned: Mapping[str, str]) -> list[str]:
    """One line for each distribution whose installed version is not the pinned one."""
    found = {name: distribution_version(name) for name in COMPARED} | _imported()
    return [
        f"{name} {found[name]} is not the pinned {pinned.get(name, NONE)}"
        for name in COMPARED
        if found[name].partition("+")[0] != pinned.get(name, NONE)
    ]


def _imported() -> dict[str, str]:
    """What is imported may lie elsewhere than what is installed."""
    return {name: installed()[name] for name in ("torch", "triton")}


def print_set(device: torch.device) -> None:
    """The set, and a line for whatever of it the project does not install."""
    print(", ".join(f"{name} {value}" for name, value in measured_set(device).items()), flush=True)
    for difference in differences(pins()):
        print(f"not the installed set: {difference}", flush=True)
