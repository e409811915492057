"""Flow matching on the product's own preview model, at a size that a CPU trains."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from demo_world.audio_latents import audio_latents
from demo_world.scenes import draw_scene
from demo_world.takes import draw_take
from demo_world.training.balance import BIAS_STEP, ExpertBalance
from demo_world.training.batches import Batch, clip_rows, lay_out, predict
from demo_world.training.flow import draw_sigmas, flow_loss
from demo_world.training.muon import orthogonalise
from demo_world.training.ops import training_ops
from demo_world.training.rows import BatchShape
from demo_world.training.start import start_weights_
from demo_world.training.trainer import PreviewTrainer
from demo_world.video_latents import image_latents, video_latents
from magi2.errors import ContractError
from magi2.models.preview.attention import sequences
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.config import MoeConfig, PreviewConfig
from magi2.models.preview.mhc import SINKHORN_ITERATIONS
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import init_random_

pytestmark = pytest.mark.demo_world

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


SHAPE = BatchShape(counts=(2, 2), text_rows=(6, 9), latent_size=(3, 2, 4), audio_length=18)


def batch_of(shape: BatchShape = SHAPE) -> Batch:
    """Short clips with random text of several lengths; the first one has none."""
    rng, generator = random.Random(31), torch.Generator().manual_seed(31)
    takes = [draw_take(draw_scene(rng), rng) for _ in range(shape.num_clips)]
    time, height, width = shape.latent_size
    video = [video_latents(take, height=height, width=width, count=time, fps=12.5) for take in takes]
    images = [image_latents(take, height=height, width=width, seconds=1.0) for take in takes[shape.counts[0] :]]
    sizes = list(zip(shape.counts, shape.text_rows, strict=True))
    lengths = [torch.arange(count) * 2 + 3 * kind for kind, count in enumerate(shape.counts)]
    texts = [torch.randn(count, rows, TEXT_CHANNELS, generator=generator) for count, rows in sizes]
    is_text = [torch.arange(rows) < length[:, None] for (_, rows), length in zip(sizes, lengths, strict=True)]
    return Batch(
        video=torch.cat(video),
        audio=torch.cat([audio_latents(take, count=shape.audio_length) for take in takes]),
        texts=(texts[0], texts[1]),
        is_text=(is_text[0], is_text[1]),
        images=torch.cat(images),
        figure_embeds=torch.randn(shape.counts[1], TEXT_CHANNELS, generator=generator),
    )


def random_model(dtype: torch.dtype = torch.float32) -> PreviewModel:
    """A model as rendering has it."""
    model = PreviewModel(CONFIG, compute_dtype=dtype)
    init_random_(model, torch.Generator().manual_seed(32))
    return model


def conditioning_of(batch: Batch, clip: int) -> Conditioning:
    """What rendering is given for one clip of the batch."""
    kind, index = divmod(clip, SHAPE.counts[0])
    text = batch.texts[kind][index][batch.is_text[kind][index]][None]
    images = (ReferenceImage(batch.images[index : index + 1], batch.figure_embeds[index]),) if kind else ()
    return Conditioning(text, text, images)


def predict_alone(model: PreviewModel, batch: Batch, timesteps: Tensor) -> tuple[Tensor, Tensor]:
    """The velocities of every clip by itself, by the product's own path."""
    alone = []
    for clip in range(SHAPE.num_clips):
        layout = model.prepare(SHAPE.latent_size, SHAPE.audio_length, conditioning_of(batch, clip), guided=False)
        alone.append(model(batch.video[clip : clip + 1], batch.audio[clip : clip + 1], timesteps[clip], layout))
    return torch.cat([video for video, _ in alone]), torch.cat([audio for _, audio in alone])


def test_clips_of_a_batch_are_predicted_and_learned_from_as_rendering_sees_each_one_alone() -> None:
    batch, timesteps = batch_of(), torch.tensor([999.0, 500.0, 3.0, 700.0])
    rendering, training = random_model(), random_model()
    training.use_ops(training_ops(sinkhorn_iterations=SINKHORN_ITERATIONS))
    layout = lay_out(training, SHAPE)
    alone = predict_alone(rendering, batch, timesteps)
    together = predict(training, batch, batch.video, batch.audio, timesteps, layout)
    for mine, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for velocity in (alone, together):
        sum(part.square().mean() for part in velocity).backward()  # type: ignore[union-attr]
    for (name, mine_p), theirs_p in zip(training.named_parameters(), rendering.parameters(), strict=True):
        assert mine_p.grad is not None and theirs_p.grad is not None
        scale = theirs_p.grad.abs().max()
        torch.testing.assert_close(mine_p.grad / scale, theirs_p.grad / scale, rtol=1e-3, atol=1e-4, msg=name)


def test_fewer_sinkhorn_iterations_predict_nearly_the_same() -> None:
    model, batch, timesteps = random_model(), batch_of(), torch.full((4,), 600.0)
    layout = lay_out(model, SHAPE)
    with torch.no_grad():
        model.use_ops(training_ops(sinkhorn_iterations=SINKHORN_ITERATIONS))
        full = predict(model, batch, batch.video, batch.audio, timesteps, layout)[0]
        model.use_ops(training_ops())
        fewer = predict(model, batch, batch.video, batch.audio, timesteps, layout)[0]
    assert 0 < (full - fewer).norm() < 0.02 * full.norm()


def test_rows_that_hold_no_text_change_nothing() -> None:
    model, batch = random_model(), batch_of()
    model.use_ops(training_ops())
    layout, timesteps = lay_out(model, SHAPE), torch.full((4,), 600.0)
    filled = [torch.where(mask[..., None], text, 9.0) for mask, text in zip(batch.is_text, batch.texts, strict=True)]
    with torch.no_grad():
        before = predict(model, batch, batch.video, batch.audio, timesteps, layout)
        other = replace(batch, texts=(filled[0], filled[1]))
        after = predict(model, other, batch.video, batch.audio, timesteps, layout)
    for mine, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_only_rows_laid_out_for_training_are_attended_without_a_soft_cap() -> None:
    heads, sinks = torch.zeros(4, 1, 8), torch.zeros(1, 1)
    with pytest.raises(ContractError, match="without soft cap"):
        training_ops().attend(heads, heads, heads, sinks, sequences((0, 4), torch.device("cpu")), -1.0)


def test_gradients_reach_every_parameter() -> None:
    model, batch = random_model(), batch_of()
    model.use_ops(training_ops())
    sigmas = torch.tensor([0.99, 0.8, 0.5, 0.1])
    sum(flow_loss(model, batch, sigmas, noise_for(batch), lay_out(model, SHAPE))).backward()  # type: ignore[union-attr]
    unreached = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_steps_on_one_batch_lower_both_losses(dtype: torch.dtype) -> None:
    trainer, batch = trainer_of(dtype), batch_of()
    before = loss_at_one_noise_level(trainer, batch)
    for _ in range(20):
        trainer.step(batch, rate=2.0)
    after = loss_at_one_noise_level(trainer, batch)
    assert after[0] < 0.8 * before[0] and after[1] < 0.8 * before[1]


def trainer_of(dtype: torch.dtype = torch.float32) -> PreviewTrainer:
    generator = torch.Generator().manual_seed(34)
    model = start_weights_(PreviewModel(CONFIG, compute_dtype=dtype), generator)
    return PreviewTrainer(model, lay_out(model, SHAPE), generator=generator)


def loss_at_one_noise_level(trainer: PreviewTrainer, batch: Batch) -> tuple[float, float]:
    with torch.no_grad():
        sigmas = torch.full((SHAPE.num_clips,), 0.9)
        video, audio = flow_loss(trainer.model, batch, sigmas, noise_for(batch), trainer.layout)
    return video.item(), audio.item()


def noise_for(batch: Batch) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(33)
    video, audio = (torch.randn(clean.shape, generator=generator) for clean in (batch.video, batch.audio))
    return video, audio


def test_training_starts_from_a_model_that_predicts_nothing() -> None:
    trainer, batch = trainer_of(), batch_of()
    with torch.no_grad():
        velocity = predict(trainer.model, batch, batch.video, batch.audio, torch.ones(4), trainer.layout)
    assert not velocity[0].any() and not velocity[1].any()


def test_averaged_weights_follow_and_load_into_the_model() -> None:
    trainer = trainer_of()
    start = {name: tensor.clone() for name, tensor in trainer.averaged.items()}
    trainer.step(batch_of(), rate=0.1)
    current = trainer.model.state_dict()
    moved = [name for name, tensor in trainer.averaged.items() if not torch.equal(tensor, start[name])]
    assert "block.layers.1.mlp.moe_mlp.router.expert_bias_ema" in moved
    for name in moved:
        between = torch.lerp(start[name], current[name], 1 - 2 / 21)
        torch.testing.assert_close(trainer.averaged[name], between)
    PreviewModel(CONFIG, compute_dtype=torch.float32).load_state_dict(trainer.averaged)


def test_overloaded_experts_lose_bias_idle_ones_gain_and_empty_rows_do_not_count() -> None:
    batch, seen = batch_of(), []
    for filling in (0.0, 5.0):
        model = random_model()
        layout = lay_out(model, SHAPE)
        balance = ExpertBalance(model, training_ops(), clip_rows(layout).with_text(batch.is_text).is_token())
        texts = [torch.where(mask[..., None], t, filling) for mask, t in zip(batch.is_text, batch.texts, strict=True)]
        filled = replace(batch, texts=(texts[0], texts[1]))
        flow_loss(model, filled, torch.full((4,), 0.5), noise_for(batch), layout)
        router = model.get_submodule("block.layers.1.mlp.moe_mlp.router")
        before = router.get_buffer("expert_bias").clone()
        balance.rebalance()
        (loads,) = balance.loads
        assert loads.shape == (2, 4) and torch.allclose(loads.sum(1), torch.ones(2))
        moved = (router.get_buffer("expert_bias") - before).view(2, 4)
        torch.testing.assert_close(moved, BIAS_STEP * torch.sign(0.25 - loads))
        assert torch.equal(router.get_buffer("expert_bias"), router.get_buffer("expert_bias_ema"))
        seen.append(loads.clone())
    assert torch.equal(*seen)


def test_a_layer_compiles_whole_and_predicts_the_same() -> None:
    """In one graph, routing and the watch over it included: a break would cost more than it says."""
    model, batch, timesteps = random_model(), batch_of(), torch.full((4,), 600.0)
    layout = lay_out(model, SHAPE)
    balance = ExpertBalance(model, training_ops(), clip_rows(layout).is_token())
    plain = predict(model, batch, batch.video, batch.audio, timesteps, layout)[0]
    seen = balance.loads.clone()
    balance.loads.zero_()
    model.block.layers[1].compile(backend="eager", fullgraph=True)
    compiled = predict(model, batch, batch.video, batch.audio, timesteps, layout)[0]
    torch.testing.assert_close(compiled, plain)
    assert seen.any() and torch.equal(balance.loads, seen)


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
