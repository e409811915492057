"""Training the refiner: from previews that are not quite right to the written-down latents of the larger picture."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from demo_world.scenes import draw_scene
from demo_world.takes import Take, draw_take
from demo_world.training.captions import FIGURE_SHARE, draw_text
from demo_world.training.clips import encode_texts
from demo_world.training.files import save_weights
from demo_world.training.learner import Learner, LearningRates
from demo_world.training.pace import Pace
from demo_world.training.refine import refiner_loss, training_ops
from demo_world.video_latents import video_latents
from demo_world.wordings import write_unconditional
from magi2.config.strict import validate
from magi2.models.checkpoint import SINGLE_NAME
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import init_random_, load_refiner
from magi2.models.refiner.model import RefinerModel, StackedLinear
from magi2.models.refiner.windows import WindowGrid
from magi2.models.text_encoder.encoder import load_text_encoder
from magi2.sampling.unipc import FlowUniPC

logger = logging.getLogger(__name__)

FOLDER, TEXT_FOLDER = "refiner", "text_encoder"
CONFIG_FILE = Path(__file__).parents[2] / "configs" / "models" / "refiner_demo.json"
RATES = LearningRates(matrices=4e-3, others=2e-3)
DEFAULT_STEPS = 6000
BATCH_SIZE = 2
CLIP_COUNT = 4096
LATENT_FRAMES = 63
CELLS_HIGH = 8
FPS = 25.0
SIGMAS = tuple(FlowUniPC(5, 5.0).sigmas[:-1].tolist())
"""The noise levels at which rendering asks the refiner."""
UNCONDITIONAL_SHARE = 0.25
"""Guidance doubles what the text changes, so without a text the refiner must be nearly as good."""
PREVIEW_NOISE = 0.15
"""Largest deviation of what a preview has wrong; each clip has its own."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """A take, and the embedded text [1, L, C] that asked for it."""

    take: Take
    text_embeds: Tensor


def train(
    folder: Path,
    *,
    device: torch.device,
    pace: Pace,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    clip_count: int = CLIP_COUNT,
    latent_frames: int = LATENT_FRAMES,
) -> None:
    """Train on `folder`/text_encoder and write `folder`/refiner: averaged weights, every minute and in the end.

    Continues from the weights that are there, if any are. `latent_frames` are those of a refined clip, an odd number.
    """
    rng, generator = random.Random(seed), torch.Generator(device).manual_seed(seed)
    lessons = _prepare_lessons(folder / TEXT_FOLDER, clip_count, rng, device)
    model = _start(folder / FOLDER, seed).to(device)
    model.use_ops(training_ops())
    choose_parameters(model)
    stacks = {f"{name}.weight": part.experts for name, part in model.named_modules() if isinstance(part, StackedLinear)}
    learner = Learner(model, RATES, stacks=stacks)
    grid = model.prepare_grid((latent_frames, CELLS_HIGH, 2 * CELLS_HIGH))
    for _ in pace:
        losses = []
        for lesson in rng.choices(lessons, k=batch_size):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
                loss = lesson_loss(model, grid, lesson, rng.choice(SIGMAS), generator)
            (loss / batch_size).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        learner.update(pace)
        pace.report(FOLDER, loss=torch.stack(losses).mean())
        if pace.saves():
            write_refiner(folder / FOLDER, learner.averaged)
    write_refiner(folder / FOLDER, learner.averaged)


def lesson_loss(
    model: RefinerModel, grid: WindowGrid, lesson: Lesson, sigma: float, generator: torch.Generator
) -> Tensor:
    """The loss of one clip of the grid's size at `sigma`; the generator is on the model's device."""
    preview, refined = draw_pair(lesson.take, generator, latent_frames=grid.size[0])
    noise = torch.randn(refined.shape, generator=generator, device=generator.device)
    return refiner_loss(model, model.prepare(grid, lesson.text_embeds), preview, refined, noise, sigma)


def draw_pair(take: Take, generator: torch.Generator, *, latent_frames: int) -> tuple[Tensor, Tensor]:
    """An inexact preview [1, 48, (T + 1) / 2, 4, 8] of `take` and the exact refined latents [1, 48, T, 8, 16]."""
    with generator.device:
        preview = video_latents(
            take, height=CELLS_HIGH // 2, width=CELLS_HIGH, count=(latent_frames + 1) // 2, fps=FPS / 2
        )
        refined = video_latents(take, height=CELLS_HIGH, width=2 * CELLS_HIGH, count=latent_frames, fps=FPS)
        level = PREVIEW_NOISE * torch.rand((), generator=generator)
        return preview + level * torch.randn(preview.shape, generator=generator), refined


def write_refiner(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write weights in the published layout and the dtypes that rendering keeps them in."""
    with torch.device("meta"):
        dtypes = {name: tensor.dtype for name, tensor in RefinerModel(demo_config()).state_dict().items()}
    save_weights(folder / SINGLE_NAME, {name: tensor.to(dtypes[name]) for name, tensor in tensors.items()})


def demo_config() -> RefinerConfig:
    """The architecture that the demo's profiles name."""
    return validate(RefinerConfig, json.loads(CONFIG_FILE.read_text(encoding="utf-8")), CONFIG_FILE.name)


def _prepare_lessons(text_encoder: Path, count: int, rng: random.Random, device: torch.device) -> list[Lesson]:
    """Takes of scenes that are not held out, each with a text of its own, some with one that asks for no scene."""
    takes = [draw_take(draw_scene(rng, held_out=False), rng) for _ in range(count)]
    texts = [
        write_unconditional(rng)
        if rng.random() < UNCONDITIONAL_SHARE
        else draw_text(take.scene, rng, has_figure=rng.random() < FIGURE_SHARE)
        for take in takes
    ]
    encoded = encode_texts(load_text_encoder(text_encoder, device=device, dtype=torch.float32), texts)
    rows = encoded.rows.float().split(encoded.length.tolist())
    return [Lesson(take, own[None]) for take, own in zip(takes, rows, strict=True)]


def choose_parameters(model: RefinerModel) -> None:
    """Everything learns but what takes sound in and gives it out: the refiner is shown none."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("audio" not in name)


def _start(folder: Path, seed: int) -> RefinerModel:
    if (folder / SINGLE_NAME).is_file():
        logger.info("%s: continues from the weights in %s", FOLDER, folder)
        model = load_refiner(folder, demo_config(), compute_dtype=torch.float32)
        assert isinstance(model, RefinerModel)
        return model
    model = RefinerModel(demo_config(), compute_dtype=torch.float32)
    init_random_(model, torch.Generator().manual_seed(seed))
    torch.nn.init.zeros_(model.post_adapter.final_linear_video.weight)
    return model
