"""The other networks of the demo checkpoint learn on the product's own modules, at toy widths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from demo_world.picture import draw_frames
from demo_world.scenes import Scene
from demo_world.takes import Take
from demo_world.training.autoencoder import EDGE_WEIGHT, decoder_loss, edge_weights, encoder_loss
from demo_world.training.refine import refiner_loss
from demo_world.video_latents import video_latents
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import init_random_ as init_refiner_
from magi2.models.refiner.model import RefinerModel
from magi2.models.turbo_vae.config import TINY_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.initialise import init_random_
from magi2.sampling.refine import add_refiner_noise, upsample_latents

pytestmark = pytest.mark.demo_world

TAKE = Take(Scene("square", "red", "blue", "large", "fast", "right", "low"))
REFINER = RefinerConfig(
    num_layers=3, hidden_size=32, head_dim=8, num_query_groups=2, text_in_channels=16, mm_layers=(0, 2),
    window_block=(2, 2, 2), window_radius=(1, 1, 1),
)  # fmt: skip
REFINED_SIZE = (7, 4, 8)


def seeded(seed: int = 41) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def refiner_case() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = RefinerModel(REFINER, compute_dtype=torch.float32)
    init_refiner_(model, seeded())
    preview = video_latents(TAKE, height=2, width=4, count=4, fps=12.5)
    refined = video_latents(TAKE, height=4, width=8, count=7, fps=25.0)
    noise = torch.randn(refined.shape, generator=seeded())
    text = torch.randn(1, 5, 16, generator=seeded())
    grid = model.prepare_grid(REFINED_SIZE)
    return model, lambda: refiner_loss(model, model.prepare(grid, text), preview, refined, noise, 0.7)


def decoder_case() -> tuple[nn.Module, Callable[[], Tensor]]:
    decoder = TurboDecoder(TINY_TURBO_DECODER, compute_dtype=torch.float32)
    init_random_(decoder, seeded())
    latents = video_latents(TAKE, height=2, width=4, count=3, fps=12.5)
    pixels = draw_frames(TAKE, height=32, width=64, fps=12.5, frame_count=12)
    weights = edge_weights(pixels)

    def loss() -> Tensor:
        beginning = decoder_loss(decoder, latents, pixels[:, :, :9], weights[:, :, :9], is_first=True)
        return beginning + decoder_loss(decoder, latents, pixels, weights, is_first=False)

    return decoder, loss


def encoder_case() -> tuple[nn.Module, Callable[[], Tensor]]:
    encoder = WanEncoder(WanVaeConfig(encoder_channels=4, decoder_channels=4))
    init_random_(encoder, seeded())
    image = draw_frames(TAKE, height=64, width=128, fps=12.5, frame_count=1)
    latents = video_latents(TAKE, height=4, width=8, count=1, fps=12.5)
    return encoder, lambda: encoder_loss(encoder, image, latents)


CASES = [refiner_case, decoder_case, encoder_case]
IDLE = {refiner_case: ("audio",), decoder_case: (), encoder_case: ("time_conv",)}
"""The refiner sees no sound as published, and an image has no time."""


@pytest.mark.parametrize("case", CASES)
def test_gradients_reach_every_parameter_that_takes_part(
    case: Callable[[], tuple[nn.Module, Callable[[], Tensor]]],
) -> None:
    module, loss = case()
    loss().backward()
    unreached = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in unreached if not any(part in name for part in IDLE[case])] == []


@pytest.mark.parametrize("case", CASES)
def test_a_few_steps_lower_the_loss(case: Callable[[], tuple[nn.Module, Callable[[], Tensor]]]) -> None:
    module, loss = case()
    optimiser = torch.optim.AdamW(module.parameters(), lr=2e-3)
    before = loss().item()
    for _ in range(8):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert loss().item() < 0.95 * before


def test_a_refiner_that_knows_the_direction_has_no_loss() -> None:
    """At any sigma: the direction is the same all along the path, so nobody has to be told the time."""
    preview = video_latents(TAKE, height=2, width=4, count=4, fps=12.5)
    refined = video_latents(TAKE, height=4, width=8, count=7, fps=25.0)
    noise = torch.randn(refined.shape, generator=seeded())
    direction = add_refiner_noise(upsample_latents(preview, (4, 8)), noise) - refined
    for sigma in (1.0, 0.9, 0.5):
        loss = refiner_loss(lambda latents, context: direction, None, preview, refined, noise, sigma)  # type: ignore
        assert loss < 1e-10


@pytest.mark.parametrize("is_first", [True, False])
def test_a_decoder_that_shows_the_truth_has_no_loss(is_first: bool) -> None:
    decoder, _ = decoder_case()
    latents = torch.randn(1, 48, 3, 2, 4, generator=seeded())
    with torch.no_grad():
        pixels = decoder.decoder(decoder.denormalise(latents), is_first)
        assert pixels.shape[2] == (9 if is_first else 12)
        assert decoder_loss(decoder, latents, pixels, torch.ones_like(pixels[:, :1]), is_first=is_first) < 1e-10


def test_edges_weigh_more_than_plain_colour() -> None:
    pixels = draw_frames(TAKE, height=64, width=128, fps=12.5, frame_count=2)
    weights = edge_weights(pixels)
    assert weights.shape == (1, 1, 2, 64, 128)
    assert weights[0, 0, 0, 0, 0] == 1.0 and 0.02 < (weights == EDGE_WEIGHT).float().mean() < 0.2
