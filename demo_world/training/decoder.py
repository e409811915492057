"""Training the turbo decoder: from written-down latents, a little noisy, to exact pictures.

It learns from crops around the shape, where all that is hard to draw is, in windows a few latents long. The
transformer's latents are not exact, so neither are these; half of the clips have colours that no scene has, so that
the decoder mixes the colours it is told instead of remembering a palette.
"""

# Shapes: B crops, T latents of a window, F frames of it, h x w cells, 16 pixels a cell

from __future__ import annotations

import functools
import json
import logging
import random
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_world.picture import draw_frames, scene_colours
from demo_world.scenes import draw_scene
from demo_world.takes import Take, draw_take, track
from demo_world.training.autoencoder import decoder_loss, edge_weights
from demo_world.training.drawing import draw_batches, drawing_processes
from demo_world.training.learner import Learner, LearningRates
from demo_world.training.pace import Pace
from demo_world.video_latents import DISTANCE_CHANNELS, FRAMES_PER_LATENT, video_latents
from magi2.files import partial_file
from magi2.models.turbo_vae.config import TINY_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.layers import ResidualBlock, Upsampler
from magi2.models.turbo_vae.loading import CONFIG_NAME, WEIGHTS_NAME, load_turbo_decoder
from magi2.models.video_vae.initialise import init_random_
from magi2.models.video_vae.statistics import LATENT_MEAN, LATENT_STD

logger = logging.getLogger(__name__)

FOLDER = "turbo_vae"
CONFIG = replace(TINY_TURBO_DECODER, decoder_block_out_channels=(16, 24, 32, 48))
RATES = LearningRates(matrices=8e-4, others=1e-3)
CPU_BATCH, ACCELERATOR_BATCH = 4, 16
"""Crops of a step. An accelerator that waits for launches has the larger one for nothing."""
CROP = 4
"""Cells along a crop's sides: the whole height of a preview, and as much as the largest shape is high when refined."""
WINDOW = 3
"""Latents of a window. Rendering decodes longer ones, but each latent says all about its own frames."""
NOISE = 0.2
"""Largest deviation of the noise that latents carry. Each crop has its own, mostly little: much of it blurs edges."""
CELL = 16
DEFAULT_STEPS = 14_000
SIZES = ((4, 12.5, 32), (8, 25.0, 63))
"""Cells high, frames per second and latents of a clip, of a preview and of a refined one."""


@dataclass(frozen=True, eq=False)
class Window:
    """What B crops show: latents [B, 48, T, h, w], pixels [B, 3, F, 16 h, 16 w] and the pixels' weights."""

    latents: Tensor
    pixels: Tensor
    weights: Tensor

    @property
    def is_first(self) -> bool:
        """Whether it begins its clip, whose first latent holds one frame."""
        return self.pixels.shape[2] < FRAMES_PER_LATENT * self.latents.shape[2]


def train(folder: Path, *, device: torch.device, pace: Pace, seed: int = 0) -> None:
    """Train until the end of `pace` and write the averaged weights, bf16, below `folder`; again every minute.

    Continues from the weights that are there, if any are.
    """
    decoder = _start(folder / FOLDER, torch.Generator().manual_seed(seed)).to(device).requires_grad_(True)
    learner = Learner(decoder, RATES)
    draw = functools.partial(draw_windows, CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH)
    batches = draw_batches(draw, seed=seed, processes=drawing_processes(device))
    for _, batch in zip(pace, batches, strict=False):
        latents, pixels, weights = (part.to(device) for part in (batch.latents, batch.pixels, batch.weights))
        with torch.autocast(device.type, torch.bfloat16):
            loss = decoder_loss(decoder, latents, pixels, weights, is_first=batch.is_first)
        loss.backward()  # type: ignore[no-untyped-call]
        learner.update(pace)
        pace.report("turbo decoder", loss=loss.detach())
        if pace.saves():
            write_decoder(folder / FOLDER, learner.averaged)
    write_decoder(folder / FOLDER, learner.averaged)


def write_decoder(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write configuration and weights, rounded to bf16, in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(asdict(CONFIG), indent=1) + "\n", encoding="utf-8")
    rounded = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    with partial_file(folder / WEIGHTS_NAME) as partial:
        torch.save({"ema_state_dict": rounded}, partial)


def draw_windows(count: int, rng: random.Random, generator: torch.Generator, number: int) -> Window:
    """A batch of `count` crops: every second one of beginnings."""
    windows = [draw_window(rng, generator, is_first=number % 2 == 0) for _ in range(count)]
    parts = ([getattr(window, field.name) for window in windows] for field in fields(Window))
    return Window(*map(torch.cat, parts))


def draw_window(rng: random.Random, generator: torch.Generator, *, is_first: bool) -> Window:
    """A crop of a fresh take at either size, from the beginning of its clip or from anywhere later."""
    take = draw_take(draw_scene(rng, held_out=False), rng)
    high, fps, count = rng.choice(SIZES)
    first = 0 if is_first else rng.randint(1, count - WINDOW)
    first_frame = max(0, FRAMES_PER_LATENT * first - 3)
    frame_count = FRAMES_PER_LATENT * WINDOW - (3 if is_first else 0)
    colours = torch.rand(2, 3, generator=generator) * 2 - 1 if rng.random() < 0.5 else scene_colours(take.scene)
    latents = video_latents(take, height=high, width=2 * high, count=WINDOW, fps=fps, first=first, colours=colours)
    pixels = draw_frames(
        take, height=CELL * high, width=2 * CELL * high, fps=fps, frame_count=frame_count, first=first_frame,
        colours=colours,
    )  # fmt: skip
    top, left = _crop_corner(take, (first_frame + frame_count / 2) / fps, high, rng)
    crop = latents[..., top : top + CROP, left : left + CROP]
    seen = pixels[..., CELL * top : CELL * (top + CROP), CELL * left : CELL * (left + CROP)]
    noise = NOISE * rng.random() ** 2 * torch.randn(crop.shape, generator=generator)
    return Window(crop + noise, seen, edge_weights(seen) * _away_from_cuts(top, left, high))


def _crop_corner(take: Take, seconds: float, high: int, rng: random.Random) -> tuple[int, int]:
    """Topmost row and leftmost column of a crop whose middle is not far from the shape."""
    at = track(take, torch.tensor([seconds]))
    corner = []
    for centre, size in ((at.y.item(), high), (at.x.item(), 2 * high)):
        wanted = centre * high - CROP / 2 + rng.uniform(-CROP / 2, CROP / 2)
        corner.append(min(max(round(wanted), 0), size - CROP))
    return corner[0], corner[1]


def _away_from_cuts(top: int, left: int, high: int) -> Tensor:
    """1, and 0 for half a cell at sides that the picture does not end at: [64, 64]."""
    size, margin = CELL * CROP, CELL // 2
    counts = torch.ones(size, size)
    if top > 0:
        counts[:margin] = 0
    if top + CROP < high:
        counts[-margin:] = 0
    if left > 0:
        counts[:, :margin] = 0
    if left + CROP < 2 * high:
        counts[:, -margin:] = 0
    return counts


def _start(folder: Path, generator: torch.Generator) -> TurboDecoder:
    if (folder / WEIGHTS_NAME).is_file():
        logger.info("turbo decoder: continues from the weights in %s", folder)
        return load_turbo_decoder(folder, device="cpu", dtype=torch.float32)
    decoder = TurboDecoder(CONFIG, compute_dtype=torch.float32)
    init_random_(decoder, generator)
    pass_through_(decoder)
    return decoder


@torch.no_grad()
def pass_through_(decoder: TurboDecoder) -> None:
    """Let `decoder` show the background's and the shape's colours and little else, in place.

    Its norms have no gain, so absolute colours survive only beside constant channels. Channels 0-5 carry the two
    colours, 6 the mean distance, 7-9 a constant; samplers and shortcuts are near the identity, the rest is weak.
    """
    network = decoder.decoder
    mean, deviation = torch.tensor(LATENT_MEAN), torch.tensor(LATENT_STD)
    kernel, bias = network.conv_in.conv.weight, network.conv_in.conv.bias
    assert bias is not None and network.conv_out.conv.bias is not None
    kernel[:10], bias[:10] = 0.0, 0.0
    for colour in range(6):
        for channel in (DISTANCE_CHANNELS + colour, DISTANCE_CHANNELS + 6 + colour):
            kernel[colour, channel, 1, 1, 1] = 0.5 / deviation[channel]
            bias[colour] -= 0.5 * mean[channel] / deviation[channel]
    distances = slice(0, DISTANCE_CHANNELS)
    kernel[6, distances, 1, 1, 1] = 1 / DISTANCE_CHANNELS / deviation[distances]
    bias[6] = -(mean[distances] / deviation[distances]).mean()
    bias[7:10] = 2.5
    network.conv_out.conv.weight.mul_(0.2)
    network.conv_out.conv.bias.zero_()
    for colour in range(3):
        network.conv_out.conv.weight[4 * colour : 4 * colour + 4, colour, 1, 1, 1] += 1.8
    for module in network.modules():
        if isinstance(module, ResidualBlock):
            _weaken(module)
        elif isinstance(module, Upsampler):
            _keep(module.resample[1].get_parameter("weight"))
            if module.time_conv is not None:
                _keep(module.time_conv.conv.weight)


def _weaken(block: ResidualBlock) -> None:
    convolution = block.conv2.get_submodule("conv")
    assert isinstance(convolution, nn.Conv3d)
    convolution.weight.mul_(0.3)
    if block.conv_shortcut is not None:
        _keep(block.conv_shortcut.get_parameter("conv.weight"))


def _keep(kernel: Tensor) -> None:
    """Nearly the identity; a kernel of twice as many outputs as inputs gives the inputs twice."""
    outputs, inputs = kernel.shape[:2]
    identity = torch.eye(inputs).repeat(2, 1) if outputs == 2 * inputs else torch.eye(outputs, inputs)
    kernel.mul_(0.3)
    taps = kernel.flatten(2)
    taps[:, :, taps.shape[2] // 2] += identity
