from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from magi2.errors import ConfigError, ContractError
from magi2.sampling.unipc import FlowUniPC
from tests.sampling.unipc_trajectories import GOLDEN, PORTABLE, RUNS, prefix, toy_velocity, trajectories

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    return load_file(GOLDEN)


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """All trajectories from a process of their own: MKL settles on its kernels once in a process."""
    file = tmp_path_factory.mktemp("unipc") / "trajectories.safetensors"
    environment = {**os.environ, **PORTABLE, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.sampling.unipc_trajectories", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return load_file(file)


def run(solver: FlowUniPC, sample: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        sample = solver.step(toy_velocity(sample, solver.sigmas[solver.step_index]), sample)
    return sample


@pytest.mark.slow
@pytest.mark.parametrize(("num_steps", "shift"), RUNS)
def test_golden_trajectories_are_met_bit_for_bit(
    published: dict[str, Tensor], portable: dict[str, Tensor], num_steps: int, shift: float
) -> None:
    for name in ("samples", "audio_samples", "corrected"):
        key = prefix(num_steps, shift) + name
        assert torch.equal(portable[key], published[key]), name


@pytest.mark.parametrize(("num_steps", "shift"), RUNS)
def test_golden_trajectories_are_met_with_the_kernels_of_this_host(
    published: dict[str, Tensor], device: torch.device, num_steps: int, shift: float
) -> None:
    for key, found in trajectories(num_steps, shift, device).items():
        torch.testing.assert_close(found, published[key], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("num_steps", "shift"), RUNS)
def test_golden_tables_are_met(published: dict[str, Tensor], num_steps: int, shift: float) -> None:
    solver = FlowUniPC(num_steps, shift)
    assert torch.equal(solver.sigmas, published[prefix(num_steps, shift) + "sigmas"])
    assert torch.equal(solver.timesteps, published[prefix(num_steps, shift) + "timesteps"])


def test_the_refiner_s_table_is_met(golden: Path) -> None:
    refiner = load_file(golden / "refiner" / "noise_and_upsample.safetensors")
    solver = FlowUniPC(5, 5.0)
    assert torch.equal(solver.sigmas, refiner["unipc_sigmas"])
    assert torch.equal(solver.timesteps, refiner["unipc_timesteps"])


def test_the_published_table_starts_and_ends_as_documented() -> None:
    solver = FlowUniPC(100, 7.0)
    assert solver.timesteps[:3].tolist() == [999, 998, 996]
    assert solver.timesteps[-3:].tolist() == [177, 124, 65]
    assert solver.sigmas.dtype == torch.float32 and solver.sigmas[-1] == 0
    assert solver.timesteps.dtype == torch.int64


def test_the_last_sample_is_the_last_clean_estimate(published: dict[str, Tensor]) -> None:
    solver = FlowUniPC(6, 7.0)
    sample = run(solver, published["x_init"], 5)
    velocity = toy_velocity(sample, solver.sigmas[5])
    assert torch.equal(solver.step(velocity, sample), sample - solver.sigmas[5] * velocity)


@pytest.mark.parametrize(("num_steps", "shift"), [(200, 7.0), (1000, 7.0), (1000, 1.0), (300, 5.0)])
def test_step_counts_with_repeated_timesteps_run_to_the_end(num_steps: int, shift: float) -> None:
    solver = FlowUniPC(num_steps, shift)
    result = run(solver, torch.linspace(-2, 2, 7).view(1, 7), num_steps)
    assert solver.step_index == num_steps
    assert result.abs().max() < 10  # also false for NaN


@pytest.mark.parametrize("num_steps", [1, 2, 5, 12])
def test_a_state_restored_after_any_step_ends_bit_equal(num_steps: int) -> None:
    noise = torch.randn(1, 3, 2, 2, 2, generator=torch.Generator().manual_seed(7))
    unbroken = run(FlowUniPC(num_steps, 7.0), noise, num_steps)
    for stop in range(num_steps + 1):
        first = FlowUniPC(num_steps, 7.0)
        sample = run(first, noise, stop)
        second = FlowUniPC(num_steps, 7.0)
        second.load_state_dict(load(save(first.state_dict())))
        assert second.step_index == stop
        assert torch.equal(run(second, sample, num_steps - stop), unbroken)


def test_a_saved_state_is_not_changed_by_later_steps() -> None:
    solver = FlowUniPC(8, 7.0)
    sample = run(solver, torch.ones(1, 4), 3)
    saved = solver.state_dict()
    before = {name: tensor.clone() for name, tensor in saved.items()}
    run(solver, sample, 5)
    assert all(torch.equal(saved[name], tensor) for name, tensor in before.items())


def test_a_state_of_another_schedule_is_refused() -> None:
    for other in (FlowUniPC(6, 7.0), FlowUniPC(5, 5.0)):
        with pytest.raises(ContractError, match="another schedule"):
            FlowUniPC(5, 7.0).load_state_dict(other.state_dict())


@pytest.mark.parametrize("name", ["sigmas", "step_index", "order", "corrected", "estimate", "older_estimate"])
def test_an_incomplete_state_is_refused_naming_what_lacks(name: str) -> None:
    solver = FlowUniPC(5, 7.0)
    run(solver, torch.ones(1, 4), 3)
    state = solver.state_dict()
    del state[name]
    with pytest.raises(ContractError, match=f"lacks '{name}'"):
        FlowUniPC(5, 7.0).load_state_dict(state)


def test_a_state_with_an_impossible_order_is_refused() -> None:
    solver = FlowUniPC(5, 7.0)
    run(solver, torch.ones(1, 4), 3)
    with pytest.raises(ContractError, match="inconsistent"):
        FlowUniPC(5, 7.0).load_state_dict(solver.state_dict() | {"order": torch.tensor(1)})


def test_a_step_after_the_last_is_refused() -> None:
    solver = FlowUniPC(2, 7.0)
    sample = run(solver, torch.ones(1, 4), 2)
    with pytest.raises(ContractError, match="all 2 steps are done"):
        solver.step(sample, sample)


@pytest.mark.parametrize("num_steps", [0, -1, 1001, 2.0, True])
def test_an_impossible_step_count_is_refused(num_steps: int) -> None:
    with pytest.raises(ConfigError, match="num_steps"):
        FlowUniPC(num_steps, 7.0)


@pytest.mark.parametrize("shift", [0.0, -1.0, float("nan"), float("inf"), 1e6, 1e-50])
def test_an_impossible_shift_is_refused(shift: float) -> None:
    with pytest.raises(ConfigError, match="shift"):
        FlowUniPC(5, shift)


def test_a_step_can_be_differentiated() -> None:
    solver = FlowUniPC(3, 7.0)
    velocity = torch.ones(1, 4, requires_grad=True)
    run(solver, solver.step(velocity, torch.zeros(1, 4)), 2).sum().backward()
    assert velocity.grad is not None and velocity.grad.abs().sum() > 0
