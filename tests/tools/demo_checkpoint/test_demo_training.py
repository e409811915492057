"""Flow matching on the product's own preview model, at a size that a CPU trains."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import MoeConfig, PreviewConfig
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import init_random_
from tools.demo_checkpoint.audio_latents import audio_latents
from tools.demo_checkpoint.scenes import draw_scene
from tools.demo_checkpoint.takes import draw_take
from tools.demo_checkpoint.training.balance import BIAS_STEP, ExpertBalance
from tools.demo_checkpoint.training.batches import Example, lay_out_batch, predict
from tools.demo_checkpoint.training.flow import draw_sigmas, flow_loss
from tools.demo_checkpoint.training.muon import orthogonalise
from tools.demo_checkpoint.training.start import start_weights_
from tools.demo_checkpoint.training.trainer import PreviewTrainer, Rates
from tools.demo_checkpoint.video_latents import video_latents

TEXT_CHANNELS = 16
CONFIG = PreviewConfig(
    num_layers=3,
    hidden_size=64,
    head_dim=16,
    num_query_groups=4,
    text_in_channels=TEXT_CHANNELS,
    intermediate_factor=3,
    mm_layers=(0, 2),
    moe_config=MoeConfig(
        num_heads=2,
        num_experts=4,
        top_k=2,
        route_scale=2.0,
        moe_layers=(1,),
        expert_intermediate_size=32,
        shared_expert_intermediate_size=32,
        modality_specific_expert_intermediate_size=32,
    ),
)


def examples_of(count: int) -> list[Example]:
    """Short clips with random text; the last one has none."""
    rng, generator = random.Random(31), torch.Generator().manual_seed(31)
    takes = [draw_take(draw_scene(rng), rng) for _ in range(count)]
    lengths = [5 + index for index in range(count - 1)] + [0]
    return [
        Example(
            video_latents(take, height=2, width=4, count=3, fps=12.5),
            audio_latents(take, count=24),
            torch.randn(length, TEXT_CHANNELS, generator=generator),
        )
        for take, length in zip(takes, lengths, strict=True)
    ]


def random_model(dtype: torch.dtype = torch.float32) -> PreviewModel:
    model = PreviewModel(CONFIG, compute_dtype=dtype)
    init_random_(model, torch.Generator().manual_seed(32))
    return model


def test_clips_of_a_batch_are_predicted_as_each_one_alone() -> None:
    model, examples = random_model(), examples_of(3)
    timesteps = torch.tensor([999.0, 500.0, 3.0])
    with torch.no_grad():
        layout = lay_out_batch(model, examples)
        together = predict(model, [e.video for e in examples], [e.audio for e in examples], timesteps, layout)
        for index, example in enumerate(examples):
            texts = Conditioning(example.text_embeds[None], example.text_embeds[None])
            own = model.prepare((3, 2, 4), 24, texts, guided=False)
            alone = model(example.video, example.audio, timesteps[index], own)
            for mine, batch in zip(alone, together, strict=True):
                torch.testing.assert_close(batch[index : index + 1], mine, rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter() -> None:
    model, examples = random_model(), examples_of(4)
    video_loss, audio_loss = flow_loss(model, examples, torch.tensor([0.99, 0.8, 0.5, 0.1]), noise_for(examples))
    (video_loss + audio_loss).backward()
    unreached = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_steps_on_one_batch_lower_both_losses(dtype: torch.dtype) -> None:
    trainer, examples = trainer_of(dtype), examples_of(4)
    before = loss_at_one_noise_level(trainer.model, examples)
    for _ in range(20):
        trainer.step(examples)
    after = loss_at_one_noise_level(trainer.model, examples)
    assert after[0] < 0.8 * before[0] and after[1] < 0.8 * before[1]


def trainer_of(dtype: torch.dtype = torch.float32) -> PreviewTrainer:
    """A trainer whose rates make up for the hundred steps of warm-up, which a run this short never leaves."""
    generator = torch.Generator().manual_seed(34)
    model = start_weights_(PreviewModel(CONFIG, compute_dtype=dtype), generator)
    return PreviewTrainer(model, total_steps=1000, generator=generator, rates=Rates(matrices=0.2, others=0.2))


def loss_at_one_noise_level(model: PreviewModel, examples: list[Example]) -> tuple[float, float]:
    with torch.no_grad():
        video_loss, audio_loss = flow_loss(model, examples, torch.full((len(examples),), 0.9), noise_for(examples))
    return video_loss.item(), audio_loss.item()


def noise_for(examples: list[Example]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(33)
    shapes = [(example.video.shape, example.audio.shape) for example in examples]
    return [
        (torch.randn(video, generator=generator), torch.randn(audio, generator=generator)) for video, audio in shapes
    ]


def test_training_starts_from_a_model_that_predicts_nothing() -> None:
    model, examples = trainer_of().model, examples_of(2)
    layout = lay_out_batch(model, examples)
    with torch.no_grad():
        velocity = predict(model, [e.video for e in examples], [e.audio for e in examples], torch.ones(2), layout)
    assert not velocity[0].any() and not velocity[1].any()


def test_averaged_weights_follow_and_load_into_the_model() -> None:
    trainer = trainer_of()
    start = {name: tensor.clone() for name, tensor in trainer.averaged.items()}
    trainer.step(examples_of(2))
    current = trainer.model.state_dict()
    moved = [name for name, tensor in trainer.averaged.items() if not torch.equal(tensor, start[name])]
    assert "block.layers.1.mlp.moe_mlp.router.expert_bias_ema" in moved
    for name in moved:
        between = torch.lerp(start[name], current[name], 1 - 2 / 21)
        torch.testing.assert_close(trainer.averaged[name], between)
    PreviewModel(CONFIG, compute_dtype=torch.float32).load_state_dict(trainer.averaged)


def test_overloaded_experts_lose_bias_and_idle_ones_gain() -> None:
    model = random_model()
    balance = ExpertBalance(model)
    flow_loss(model, examples := examples_of(2), torch.full((2,), 0.5), noise_for(examples))
    router = model.get_submodule("block.layers.1.mlp.moe_mlp.router")
    before = router.get_buffer("expert_bias").clone()
    (loads,) = balance.rebalance()
    assert loads.shape == (2, 4) and torch.allclose(loads.sum(1), torch.ones(2))
    moved = (router.get_buffer("expert_bias") - before).view(2, 4)
    torch.testing.assert_close(moved, BIAS_STEP * torch.sign(0.25 - loads))
    assert torch.equal(router.get_buffer("expert_bias"), router.get_buffer("expert_bias_ema"))


@pytest.mark.parametrize("shape", [(1, 24, 40), (3, 40, 24)])
def test_orthogonalised_matrices_keep_their_directions_and_lose_their_scales(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(36))
    result = orthogonalise(100 * matrices)
    strengths = torch.linalg.svdvals(result)
    assert strengths.min() > 0.5 and strengths.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    assert torch.nn.functional.cosine_similarity(result.flatten(), (left @ right).flatten(), dim=0) > 0.95


def test_noise_levels_favour_the_noisy_end() -> None:
    sigmas = draw_sigmas(4000, torch.Generator().manual_seed(37))
    assert sigmas.min() > 0 and sigmas.max() < 1
    assert (sigmas > 0.5).float().mean() == pytest.approx(0.774, abs=0.03)  # mean of 5/6 and 5/7


def test_clips_of_two_sizes_are_no_batch() -> None:
    first, second = examples_of(2)
    with pytest.raises(ContractError, match="2 sizes"):
        lay_out_batch(random_model(), [first, replace(second, audio=second.audio[:, :8])])
