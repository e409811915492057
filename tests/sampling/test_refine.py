"""Enlarging, noising and the guided steps of the refiner against the published ones."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from magi2.errors import ConfigError, ContractError
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import load_refiner
from magi2.sampling.refine import RefinerState, add_refiner_noise, denoise_refiner, noise_table, upsample_latents
from magi2.sampling.unipc import FlowUniPC

TINY = RefinerConfig(
    num_layers=5, hidden_size=128, head_dim=32, num_query_groups=2, text_in_channels=96, mm_layers=(0, 1, 4)
)


@pytest.fixture(scope="module")
def sampling(golden, device):
    return {name: t.to(device) for name, t in load_file(golden / "refiner" / "sampling_5step.safetensors").items()}


@pytest.fixture(scope="module")
def noising(golden):
    return load_file(golden / "refiner" / "noise_and_upsample.safetensors")


def relative_error(got, wanted):
    return float((got - wanted).norm() / wanted.norm())


def refine(golden, sampling, dtype, **options):
    refiner = load_refiner(
        golden / "refiner" / "tiny_checkpoint", TINY, device=sampling["noise"].device, compute_dtype=dtype
    )
    latents = upsample_latents(sampling["preview_latent"], (9, 22))
    grid = refiner.prepare_grid(tuple(latents.shape[2:]))
    with torch.no_grad():
        contexts = [refiner.prepare(grid, sampling[name]) for name in ("context", "context_null")]
    seen = []

    def model(latents, context):
        velocity = refiner(latents, context)
        seen.append((latents, velocity))
        return velocity

    return denoise_refiner(model, latents, sampling["noise"], *contexts, **options), seen


def test_noise_table_is_the_published_one(noising):
    table = noise_table()
    assert torch.allclose(table, noising["sigmas"], rtol=1.2e-7, atol=6e-8)
    assert table[999] == 0
    assert table[220].item() == pytest.approx(0.83891040, abs=1e-7)


def test_enlarged_and_noised_latents_are_the_published_ones(noising):
    enlarged = upsample_latents(noising["latent_in"], (9, 11))
    assert (enlarged - noising["latent_up"]).abs().max() <= 1e-5
    assert (enlarged[:, :, 1] - (enlarged[:, :, 0] + enlarged[:, :, 2]) / 2).abs().max() <= 1e-5
    noised = add_refiner_noise(noising["latent_up"], noising["noise"])
    assert (noised - noising["latent_noised"]).abs().max() <= 1e-5


def test_steps_are_the_published_ones(noising):
    solver = FlowUniPC(5, 5.0)
    assert torch.equal(solver.timesteps, noising["unipc_timesteps"])
    assert torch.allclose(solver.sigmas, noising["unipc_sigmas"], rtol=1.2e-7, atol=0)


def test_noise_index_zero_leaves_the_latents_alone(noising):
    latents = noising["latent_up"]
    assert torch.equal(add_refiner_noise(latents, noising["noise"], index=0), latents)


@pytest.mark.slow
def test_a_full_run_is_the_published_one(golden, sampling):
    done = []
    final, seen = refine(golden, sampling, torch.float32, on_step=lambda *step: done.append(step))
    assert done == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert len(seen) == 10
    assert relative_error(seen[0][1], sampling["fp32.step0.cond"]) <= 1e-5
    assert relative_error(seen[1][1], sampling["fp32.step0.uncond"]) <= 1e-5
    assert relative_error(seen[2][0], sampling["fp32.step1.latent_in"]) <= 1e-4
    assert relative_error(seen[6][0], sampling["fp32.step3.latent_in"]) <= 1e-4
    assert relative_error(final, sampling["fp32.final"]) <= 1e-4


@pytest.mark.slow
def test_a_bf16_run_stays_near_the_fp32_one(golden, sampling):
    final, _ = refine(golden, sampling, torch.bfloat16)
    assert final.dtype == torch.float32
    assert relative_error(final, sampling["fp32.final"]) <= 8e-2


def test_tiny_configuration_is_the_one_of_the_weights(golden):
    arch = json.loads((golden / "refiner" / "tiny_config.json").read_text())["magi2_refiner_arch_config"]
    assert all(getattr(TINY, name) == arch[name] for name in ("num_layers", "hidden_size", "head_dim"))


def small_model(latents, context):
    return torch.tanh(latents * context)


def test_a_resumed_run_ends_in_the_bits_of_an_unbroken_one(tmp_path):
    generator = torch.Generator().manual_seed(0)
    latents, noise = torch.randn(2, 1, 4, 3, 5, 6, generator=generator)
    states = []
    whole = denoise_refiner(
        small_model, latents, noise, 1.5, 0.5, snapshot_every=1, on_snapshot=lambda state: states.append(state)
    )
    assert [state.step for state in states] == [1, 2, 3, 4]
    for state in states:
        save_file(state.tensors(), tmp_path / "state.safetensors")
        restored = RefinerState.from_tensors(load_file(tmp_path / "state.safetensors"))
        nothing = torch.zeros_like(latents)
        assert torch.equal(denoise_refiner(small_model, nothing, nothing, 1.5, 0.5, resume=restored), whole)


def test_a_resumed_run_counts_its_steps_from_where_it_stopped():
    latents, states, done = torch.ones(1, 4, 3, 2, 2), [], []
    denoise_refiner(small_model, latents, latents, 1.0, 0.5, snapshot_every=3, on_snapshot=states.append)
    denoise_refiner(small_model, latents, latents, 1.0, 0.5, resume=states[0], on_step=lambda *step: done.append(step))
    assert done == [(4, 5), (5, 5)]


def test_snapshots_come_every_n_steps_but_not_after_the_last():
    latents, steps = torch.ones(1, 4, 3, 2, 2), []
    denoise_refiner(
        small_model,
        latents,
        latents,
        1.0,
        0.5,
        num_steps=6,
        snapshot_every=2,
        on_snapshot=lambda s: steps.append(s.step),
    )
    assert steps == [2, 4]


def test_what_does_not_fit_is_refused():
    latents = torch.zeros(1, 4, 3, 2, 2)
    with pytest.raises(ContractError, match="noise is"):
        denoise_refiner(small_model, latents, torch.zeros(1, 4, 3, 2, 3), 1.0, 0.5)
    with pytest.raises(ContractError, match="must be fp32"):
        denoise_refiner(small_model, latents.double(), latents, 1.0, 0.5)
    with pytest.raises(ConfigError, match="noise_index is 1000"):
        denoise_refiner(small_model, latents, latents, 1.0, 0.5, noise_index=1000)
    with pytest.raises(ContractError, match="cannot enlarge"):
        upsample_latents(latents, (0, 4))
    states = []
    denoise_refiner(small_model, latents, latents, 1.0, 0.5, snapshot_every=3, on_snapshot=states.append)
    with pytest.raises(ContractError, match="another schedule"):
        denoise_refiner(small_model, latents, latents, 1.0, 0.5, num_steps=4, resume=states[0])
    larger = torch.zeros(1, 4, 3, 4, 4)
    with pytest.raises(ContractError, match="refiner state has latents"):
        denoise_refiner(small_model, larger, larger, 1.0, 0.5, resume=states[0])
    with pytest.raises(ContractError, match="lacks 'step'"):
        RefinerState.from_tensors({"latents": latents})
