"""The parts that train on their own: decoder, image encoder and refiner write weights that rendering loads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from demo_world.picture import draw_frames, scene_colours
from demo_world.scenes import Scene
from demo_world.takes import Take
from demo_world.training import decoder, encoder, refiner
from demo_world.training.learner import Learner, LearningRates
from demo_world.training.pace import Pace
from demo_world.training.refine import training_ops
from demo_world.video_latents import draw_from_latents, image_latents, video_latents
from magi2.errors import ContractError
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import init_random_, load_refiner
from magi2.models.refiner.model import RefinerModel
from magi2.models.text_encoder.tiny import write_tiny_text_encoder
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.initialise import init_random_ as init_convolutions_
from magi2.models.video_vae.loading import load_wan_encoder

pytestmark = pytest.mark.demo_world

CPU = torch.device("cpu")
TAKE = Take(Scene("triangle", "red", "blue", "large", "fast", "right", "low"))
REFINER = RefinerConfig(
    num_layers=2, hidden_size=32, head_dim=8, num_query_groups=2, text_in_channels=16, mm_layers=(0,),
    window_block=(1, 4, 8), window_radius=(1, 0, 0),
)  # fmt: skip


def seeded(seed: int = 51) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_decoder_is_written_as_rendering_loads_it_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "CPU_BATCH", 1)
    decoder.train(tmp_path, device=CPU, pace=Pace(steps=1))
    first = load_turbo_decoder(tmp_path / decoder.FOLDER, device="cpu")
    decoder.train(tmp_path, device=CPU, pace=Pace(steps=1))
    second = load_turbo_decoder(tmp_path / decoder.FOLDER, device="cpu")
    assert first.config == decoder.CONFIG
    assert 0 < largest_change(first, second) < 0.05


def test_the_image_encoder_is_written_as_rendering_loads_it_and_goes_on_from_there(tmp_path: Path) -> None:
    encoder.train(tmp_path, device=CPU, pace=Pace(steps=1))
    first = load_wan_encoder(tmp_path / encoder.FILE, encoder.CONFIG, device="cpu")
    encoder.train(tmp_path, device=CPU, pace=Pace(steps=1))
    second = load_wan_encoder(tmp_path / encoder.FILE, encoder.CONFIG, device="cpu")
    assert 0 < largest_change(first, second) < 0.05


def test_the_refiner_is_written_as_rendering_loads_it_and_goes_on_from_there(tmp_path: Path) -> None:
    write_tiny_text_encoder(tmp_path / refiner.TEXT_FOLDER, seed=1, hidden_size=128)
    weights = []
    for _ in range(2):
        refiner.train(tmp_path, device=CPU, pace=Pace(steps=1), clip_count=2, latent_frames=3, batch_size=1)
        weights.append(load_refiner(tmp_path / refiner.FOLDER, refiner.demo_config()))
    first, second = weights
    assert isinstance(first, nn.Module) and isinstance(second, nn.Module)
    assert 0 < largest_change(first, second) < 0.05


def largest_change(first: nn.Module, second: nn.Module) -> float:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


def test_a_fresh_decoder_shows_the_colours_already() -> None:
    fresh = TurboDecoder(decoder.CONFIG, compute_dtype=torch.float32)
    init_convolutions_(fresh, seeded())
    decoder.pass_through_(fresh)
    with torch.no_grad():
        frames = fresh.decoder(fresh.denormalise(video_latents(TAKE, height=4, width=8, count=1, fps=12.5)), True)
    corner = frames[0, :, 0, :24, -48:].mean((1, 2))
    background = scene_colours(TAKE.scene)[0]
    assert torch.nn.functional.cosine_similarity(corner, background, dim=0) > 0.7


@pytest.mark.parametrize("is_first", [True, False])
def test_a_window_of_training_shows_the_same_in_latents_and_in_pixels(is_first: bool) -> None:
    rng, generator = random.Random(52), seeded()
    for _ in range(8):
        window = decoder.draw_window(rng, generator, is_first=is_first)
        drawn = draw_from_latents(window.latents, height=decoder.CELL * decoder.CROP)
        pixels = window.pixels if is_first else window.pixels[:, :, 3:]  # the yardstick's first latent is one frame
        counts = window.weights[:, :, -drawn.shape[2] :] > 0
        assert ((drawn - pixels).abs() * counts).mean() < 0.1


def test_an_image_of_training_shows_the_same_in_latents_and_in_pixels() -> None:
    rng, generator = random.Random(53), seeded()
    for _ in range(8):
        pixels, latents = encoder.draw_image(rng, generator)
        assert (draw_from_latents(latents, height=64) - pixels).abs().mean() < 0.03


def test_latents_of_a_moment_are_those_of_the_clip() -> None:
    clip = video_latents(TAKE, height=4, width=8, count=4, fps=12.5)
    assert torch.equal(image_latents(TAKE, height=4, width=8, seconds=0.0), clip[:, :, :1])
    later = video_latents(TAKE, height=4, width=8, count=2, fps=12.5, first=2)
    assert torch.equal(later, clip[:, :, 2:])
    frames = draw_frames(TAKE, height=32, width=64, fps=12.5, frame_count=5)
    assert torch.equal(draw_frames(TAKE, height=32, width=64, fps=12.5, frame_count=2, first=3), frames[:, :, 3:])


def test_the_refiners_attention_in_training_is_that_of_rendering() -> None:
    results = []
    for ops in (None, training_ops()):
        model = RefinerModel(REFINER, compute_dtype=torch.float32)
        init_random_(model, seeded())
        if ops is not None:
            model.use_ops(ops)
        latents = torch.randn(1, 48, 5, 4, 8, generator=seeded()).requires_grad_(True)
        context = model.prepare(model.prepare_grid((5, 4, 8)), torch.randn(1, 6, 16, generator=seeded()))
        velocity = model(latents, context)
        velocity.square().mean().backward()
        assert latents.grad is not None
        gradient = model.get_parameter("block.layers.0.attention.linear_qkv.weight").grad
        assert gradient is not None
        results.append((velocity.detach(), latents.grad, gradient))
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


def test_blocks_that_do_not_fill_the_grid_are_refused_in_training() -> None:
    model = RefinerModel(REFINER, compute_dtype=torch.float32)
    init_random_(model, seeded())
    model.use_ops(training_ops())
    with pytest.raises(ContractError, match=r"\(5, 4, 12\)"):
        model.prepare(model.prepare_grid((5, 4, 12)), torch.zeros(1, 0, 16))


def test_a_few_lessons_lower_the_refiners_loss() -> None:
    model = RefinerModel(refiner.demo_config(), compute_dtype=torch.float32)
    init_random_(model, seeded())
    model.use_ops(training_ops())
    refiner.choose_parameters(model)
    grid, lesson = model.prepare_grid((3, 8, 16)), refiner.Lesson(TAKE, torch.randn(1, 4, 128, generator=seeded()))
    learner, pace = Learner(model, LearningRates(matrices=2e-2, others=1e-2)), Pace(steps=1000)

    def loss() -> Tensor:
        return refiner.lesson_loss(model, grid, lesson, 0.9, seeded())

    before = loss().item()
    for pace.step in range(40, 52):  # behind the warm-up
        loss().backward()
        learner.update(pace)
    assert loss().item() < 0.7 * before


def test_a_run_ends_at_whichever_limit_comes_first_and_slows_down_before() -> None:
    now = [0.0]
    pace = Pace(seconds=100.0, steps=20, clock=lambda: now[0])
    rates = []
    for _ in pace:
        rates.append(pace.rate(warm_up=4, steady=0.5))
        now[0] += 8.0
    assert len(rates) == 13  # by the clock
    assert rates[0] == 0.25 and rates[4] == 1.0 and rates[-1] < 0.1
    assert len(list(Pace(steps=20, clock=lambda: 0.0))) == 20
