"""Training the image encoder: from the pixels of a reference image to the latents that are written down for it.

Rendering encodes single images only, so the parts of the network that look at other frames stay zero, and so does the
whole Wan decoder, which shares the file.
"""

# Shapes: B images, H x W pixels, h x w cells

from __future__ import annotations

import functools
import logging
import random
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from demo_world.picture import draw_frames, scene_colours
from demo_world.scenes import draw_scene
from demo_world.takes import draw_take
from demo_world.training.autoencoder import encoder_loss
from demo_world.training.drawing import draw_batches, drawing_processes
from demo_world.training.learner import Learner, LearningRates
from demo_world.training.pace import Pace
from demo_world.video_latents import image_latents
from magi2.files import partial_file
from magi2.media.frames import to_uint8
from magi2.media.image import prepare_reference
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.initialise import init_random_
from magi2.models.video_vae.loading import load_wan_encoder

logger = logging.getLogger(__name__)

FILE = Path("vae") / "Wan2.2_VAE.pth"
CONFIG = WanVaeConfig(encoder_channels=12, decoder_channels=1, channel_multipliers=(1, 2, 2, 2), encoder_blocks=1)
"""Twelve channels hold all of two by two pixels; with fewer, corners of small shapes come out round."""
RATES = LearningRates(matrices=4e-3, others=2e-3)
DEFAULT_STEPS = 14_000
CPU_BATCH, ACCELERATOR_BATCH = 8, 32
"""Images of a step. An accelerator that waits for launches has the larger one for nothing."""
CELLS_HIGH = 4
CELL = 16
LONGEST_S = 10.0
TIME_ONLY = "time_conv"
"""In the names of layers that a single image skips."""
FREE_COLOURS = 0.3
"""Share of images with colours that no scene has."""


def train(folder: Path, *, device: torch.device, pace: Pace, seed: int = 0) -> None:
    """Train until the end of `pace` and write the averaged weights, bf16, below `folder`; again every minute.

    Continues from the weights that are there, if any are.
    """
    encoder = _start(folder / FILE, torch.Generator().manual_seed(seed)).to(device)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(TIME_ONLY not in name)
    learner = Learner(encoder, RATES)
    draw = functools.partial(draw_images, CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH)
    batches = draw_batches(draw, seed=seed, processes=drawing_processes(device))
    for _, (pixels, latents) in zip(pace, batches, strict=False):
        loss = encoder_loss(encoder, pixels.to(device), latents.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        learner.update(pace)
        pace.report("image encoder", loss=loss.detach())
        if pace.saves():
            write_encoder(folder / FILE, learner.averaged)
    write_encoder(folder / FILE, learner.averaged)


def write_encoder(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write the encoder's weights, rounded to bf16, in the published layout, beside a decoder of zeros."""
    path.parent.mkdir(parents=True, exist_ok=True)
    decoder = {name: torch.zeros_like(tensor) for name, tensor in WanDecoder(CONFIG).state_dict().items()}
    rounded = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in (tensors | decoder).items()}
    with partial_file(path) as partial:
        torch.save(rounded, partial)


def draw_images(count: int, rng: random.Random, generator: torch.Generator, _: int) -> tuple[Tensor, Tensor]:
    """A batch of `count` images: pixels [B, 3, 1, 64, 128] and latents [B, 48, 1, 4, 8]."""
    pixels, latents = zip(*(draw_image(rng, generator) for _ in range(count)), strict=True)
    return torch.cat(pixels), torch.cat(latents)


def draw_image(rng: random.Random, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pixels [1, 3, 1, 64, 128] of a take at any moment, as rendering reads them from a file, and their latents.

    Some files are larger than what is made of them.
    """
    take = draw_take(draw_scene(rng, held_out=False), rng)
    seconds = rng.uniform(0, LONGEST_S)
    colours = torch.rand(2, 3, generator=generator) * 2 - 1
    if rng.random() > FREE_COLOURS:
        colours = scene_colours(take.scene)
    height = CELL * CELLS_HIGH * rng.choice((1, 2, 4))
    drawn = draw_frames(take, height=height, width=2 * height, fps=1 / seconds, first=1, frame_count=1, colours=colours)
    picture = Image.fromarray(to_uint8(drawn)[0].numpy())
    pixels = prepare_reference(picture, height=CELL * CELLS_HIGH, width=2 * CELL * CELLS_HIGH)
    return pixels, image_latents(take, height=CELLS_HIGH, width=2 * CELLS_HIGH, seconds=seconds, colours=colours)


def _start(path: Path, generator: torch.Generator) -> WanEncoder:
    if path.is_file():
        logger.info("image encoder: continues from the weights in %s", path)
        return load_wan_encoder(path, CONFIG, device="cpu")
    encoder = WanEncoder(CONFIG)
    init_random_(encoder, generator)
    _see_one_frame_(encoder)
    return encoder


@torch.no_grad()
def _see_one_frame_(encoder: WanEncoder) -> None:
    """Zero what looks at earlier frames; what is left keeps the size of its input."""
    for name, module in encoder.named_modules():
        if not isinstance(module, nn.Conv3d) or module.kernel_size[0] == 1:
            continue
        module.weight[:, :, : None if TIME_ONLY in name else -1] = 0.0
        module.weight.mul_(module.kernel_size[0] ** 0.5)
        if TIME_ONLY in name:
            nn.init.zeros_(module.get_parameter("bias"))
