"""The refiner against the published one, stage by stage, and the promises of its loop."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError
from magi2.models.layers import swiglu7
from magi2.models.refiner import model as refiner_module
from magi2.models.refiner.loading import init_random_
from magi2.models.refiner.model import RefinerModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-5, "bf16": 1.5e-2}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def flavour(request):
    return request.param


@pytest.fixture(scope="module")
def tiny_refiner(load_tiny_refiner, flavour):
    return load_tiny_refiner(DTYPES[flavour])


@torch.no_grad()
def test_every_stage_of_a_text_to_video_forward_is_the_published_one(
    tiny_refiner, flavour, load_refiner_golden, relative_error
):
    wanted = load_refiner_golden("forward_t2v")
    rows = wanted["hidden_rows"]
    context = tiny_refiner.prepare(tiny_refiner.prepare_grid((11, 9, 22)), wanted["text"])
    assert (context.rope[rows] - wanted["rope_rows"]).abs().max() <= 1e-5

    def check(name, got):
        assert relative_error(got, wanted[f"{flavour}.{name}"]) <= TOLERANCE[flavour], name

    x = tiny_refiner.embed(wanted["video"], context)
    assert x.dtype == DTYPES[flavour]
    check("adapter_out", x[rows])
    check("layer0_attn_out", tiny_refiner.block.layers[0].attention(x, context)[rows])
    for index, layer in enumerate(tiny_refiner.block.layers):
        if index == 2:
            check("layer2_in", x[rows])
        x = layer(x, context)
        assert x.dtype == torch.float32
        if index in (0, 2, 4):
            check(f"layer{index}_out", x[rows])
    check("out_video", tiny_refiner.video_velocity(x, context))
    out = tiny_refiner(wanted["video"], context)
    assert out.dtype == torch.float32
    check("out_video", out)


@torch.no_grad()
def test_forward_with_audio_rows_is_the_published_one(tiny_refiner, flavour, load_refiner_golden, relative_error):
    wanted = load_refiner_golden("forward_with_audio")
    grid = tiny_refiner.prepare_grid((3, 5, 6))
    context = tiny_refiner.prepare(grid, wanted["text"], wanted["audio"])
    assert (context.rope - wanted["rope"]).abs().max() <= 1e-5
    x = tiny_refiner.embed(wanted["video"], context)
    if flavour == "fp32":
        branch = tiny_refiner.block.layers[0].attention(x, context)
        assert relative_error(branch, wanted["fp32.layer0_attn_out"]) <= 1e-5
        x = tiny_refiner.block.layers[0](x, context)
        assert relative_error(x, wanted["fp32.layer0_out"]) <= 1e-5
        x = tiny_refiner.block.layers[2](wanted["fp32.layer2_in"], context)
        assert relative_error(x, wanted["fp32.layer2_out"]) <= 1e-5
    hidden = tiny_refiner.hidden_states(wanted["video"], context)
    for name, got in (
        ("out_video", tiny_refiner.video_velocity(hidden, context)),
        ("out_audio", tiny_refiner.audio_velocity(hidden, context)),
    ):
        assert relative_error(got, wanted[f"{flavour}.{name}"]) <= TOLERANCE[flavour], name


def test_gated_activation_is_the_published_one(refiner_golden):
    wanted = load_file(refiner_golden / "units.safetensors")
    assert torch.allclose(swiglu7(wanted["swiglu7.in"]), wanted["swiglu7.out"], atol=1e-6)


@torch.no_grad()
def test_chunked_tokens_give_the_same_result(load_tiny_refiner, load_refiner_golden, relative_error, monkeypatch):
    wanted = load_refiner_golden("forward_t2v")
    refiner = load_tiny_refiner(torch.float32)
    monkeypatch.setattr(refiner_module, "CHUNK_TOKENS", 100)
    context = refiner.prepare(refiner.prepare_grid((11, 9, 22)), wanted["text"])
    assert len(context.shared_runs) == 22
    assert [run for run in context.modality_runs if run[0] == 2] == [(2, 2178, 2185)]
    assert relative_error(refiner(wanted["video"], context), wanted["fp32.out_video"]) <= 1e-5


@torch.no_grad()
def test_a_grid_without_text_is_refined(load_tiny_refiner, load_refiner_golden):
    wanted = load_refiner_golden("forward_with_audio")
    refiner = load_tiny_refiner(torch.bfloat16)
    context = refiner.prepare(refiner.prepare_grid((3, 5, 6)), wanted["text"][:, :0])
    assert torch.isfinite(refiner(wanted["video"], context)).all()


@pytest.mark.parametrize("grad", [False, True])
def test_a_layer_adds_to_a_wide_residual_in_place_unless_gradients_are_recorded(
    load_tiny_refiner, load_refiner_golden, grad
):
    wanted = load_refiner_golden("forward_with_audio")
    refiner = load_tiny_refiner(torch.float32)
    with torch.set_grad_enabled(grad):
        context = refiner.prepare(refiner.prepare_grid((3, 5, 6)), wanted["text"], wanted["audio"])
        x = wanted["fp32.layer2_in"].clone()
        out = refiner.block.layers[2](x, context)
    assert (out is x) is not grad
    assert torch.equal(x, wanted["fp32.layer2_in"]) is grad


def test_gradients_reach_every_parameter(tiny_refiner_config, device):
    generator = torch.Generator().manual_seed(3)
    refiner = RefinerModel(tiny_refiner_config, compute_dtype=torch.float32)
    init_random_(refiner, generator)
    refiner.to(device)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device)  # noqa: E731
    context = refiner.prepare(refiner.prepare_grid((3, 5, 6)), draw(1, 7, 96), draw(1, 5, 64))
    hidden = refiner.hidden_states(draw(1, 48, 3, 5, 6), context)
    loss = (
        refiner.video_velocity(hidden, context).square().mean() + refiner.audio_velocity(hidden, context).abs().mean()
    )
    loss.backward()
    for name, parameter in refiner.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_a_forward_reads_nothing_back_to_the_host(load_tiny_refiner, load_refiner_golden, no_host_sync):
    wanted = load_refiner_golden("forward_with_audio")
    refiner = load_tiny_refiner(torch.bfloat16)
    context = refiner.prepare(refiner.prepare_grid((3, 5, 6)), wanted["text"], wanted["audio"])
    refiner(wanted["video"], context)  # what is compiled is compiled now
    with no_host_sync():
        refiner(wanted["video"], context)


def test_misshaped_inputs_are_refused(tiny_refiner_config):
    refiner = RefinerModel(tiny_refiner_config)
    with pytest.raises(ContractError, match="latent grid"):
        refiner.prepare_grid((0, 4, 4))
    grid = refiner.prepare_grid((3, 5, 6))
    with pytest.raises(ContractError, match=r"text_embeds has shape \(1, 7, 95\), must be \(1, 'any', 96\)"):
        refiner.prepare(grid, torch.zeros(1, 7, 95))
    context = refiner.prepare(grid, torch.zeros(1, 7, 96))
    with pytest.raises(ContractError, match="latents has shape"):
        refiner(torch.zeros(1, 48, 3, 6, 5), context)
