"""The golden trajectories, run anew: `python -m tests.sampling.unipc_trajectories FILE` leaves them in FILE.

Run it in an environment with `PORTABLE` to get the published bits. Logarithms and the 2x2 systems of the solver's
coefficients, and the sine of the toy velocity, come from MKL, which picks kernels by processor, and those differ in the
last bit. The vectors were made with its portable kernels, which this setting chooses on every processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magi2.sampling.unipc import FlowUniPC

GOLDEN = Path(__file__).parents[1] / "golden" / "preview" / "flow_unipc.safetensors"
PORTABLE = {"MKL_CBWR": "COMPATIBLE"}
RUNS = [(num_steps, shift) for shift in (7.0, 5.0) for num_steps in (1, 2, 5, 20, 100)]


def prefix(num_steps: int, shift: float) -> str:
    """What the names of a run's tensors begin with."""
    return f"shift{shift:.0f}.n{num_steps}."


def toy_velocity(sample: Tensor, sigma: Tensor) -> Tensor:
    return 0.7 * sample + 0.5 * torch.sin(3 * sample) - 0.3 * sigma


def trajectories(num_steps: int, shift: float, device: torch.device) -> dict[str, Tensor]:
    """`samples`, `corrected` and `audio_samples` after every step, on the CPU, under their golden names."""
    golden, found = load_file(GOLDEN), {}
    for name, start in (("samples", "x_init"), ("audio_samples", "audio_init")):
        solver, sample = FlowUniPC(num_steps, shift), golden[start].to(device)
        samples, corrected = [], []
        for sigma in solver.sigmas[:-1]:
            sample = solver.step(toy_velocity(sample, sigma), sample)
            assert solver.corrected is not None
            samples.append(sample)
            corrected.append(solver.corrected)
        found[name] = torch.cat(samples).cpu()
        if name == "samples":
            found["corrected"] = torch.cat(corrected).cpu()
    return {prefix(num_steps, shift) + name: tensor for name, tensor in found.items()}


def main(file: Path) -> None:
    found: dict[str, Tensor] = {}
    for run in RUNS:
        found |= trajectories(*run, torch.device("cpu"))
    save_file(found, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
