"""Training the preview transformer on clips with and without a reference image, with the text tower of the folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from demo_world.training import text
from demo_world.training.batches import lay_out
from demo_world.training.clips import Clips, prepare_clips
from demo_world.training.files import save_weights
from demo_world.training.pace import Pace
from demo_world.training.start import start_weights_
from demo_world.training.trainer import PreviewTrainer
from magi2.config.strict import validate
from magi2.models.checkpoint import SINGLE_NAME
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.model import PreviewModel

logger = logging.getLogger(__name__)

FOLDER = "preview"
CONFIG_FILE = Path(__file__).parents[2] / "configs" / "models" / "preview_demo.json"
DEFAULT_STEPS = 10_000
BATCH_SIZE = 64
CLIP_COUNT = 24576
LATENT_FRAMES = 32
WARM_UP_STEPS = 100
STEADY_SHARE = 0.35
"""Of the run, before the learning rate falls to zero in a line."""
FIRST_REPORTS = 3
COMPILED_VARIANTS = 64
SMALL_TENSOR = 4096
"""Tensors with fewer values are stored in fp32, whatever they are."""


def train(
    folder: Path,
    *,
    device: torch.device,
    pace: Pace,
    seed: int = 0,
    compiled: bool = False,
    batch_size: int = BATCH_SIZE,
    clip_count: int = CLIP_COUNT,
    latent_frames: int = LATENT_FRAMES,
) -> None:
    """Train on `folder`/text_encoder and write `folder`/preview: averaged weights, every minute and in the end.

    Continues from the weights that are there, if any are, with fresh optimisers.
    `compiled` compiles each layer, which takes about a minute at the first step and pays after a few hundred.
    """
    clips = prepare_clips(folder / text.FOLDER, count=clip_count, latent_frames=latent_frames, device=device, seed=seed)
    logger.info("%s: %d clips, %s rows of text", FOLDER, len(clips.video), clips.text_rows)
    train_on(clips, folder / FOLDER, pace=pace, seed=seed, compiled=compiled, batch_size=batch_size)


def train_on(
    clips: Clips,
    folder: Path,
    *,
    pace: Pace,
    seed: int,
    compiled: bool,
    batch_size: int,
    config: PreviewConfig | None = None,
) -> PreviewTrainer:
    """Train on these clips, on their device (in bf16 on an accelerator, else fp32); writes the weights to `folder`."""
    device = clips.video.device
    generator = torch.Generator(device).manual_seed(seed)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = _start(folder / SINGLE_NAME, PreviewModel(config or demo_config(), compute_dtype=dtype), seed).to(device)
    shape = clips.shape(batch_size)
    trainer = PreviewTrainer(model, lay_out(model, shape), generator=generator)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if compiled:
        torch._dynamo.config.recompile_limit = COMPILED_VARIANTS
        for layer in model.block.layers:
            layer.compile()
    for step in pace:
        rate = pace.rate(warm_up=WARM_UP_STEPS, steady=STEADY_SHARE)
        video, audio = trainer.step(clips.draw(shape, generator), rate=rate)
        loads = trainer.balance.loads
        if step < FIRST_REPORTS:
            logger.info("%s: step %d, video %.4f audio %.4f", FOLDER, step, video, audio)
        pace.report(FOLDER, video=video, audio=audio, least_load=loads.amin(), most_load=loads.amax())
        if pace.saves():
            save_weights(folder / SINGLE_NAME, stored(trainer.averaged))
    save_weights(folder / SINGLE_NAME, stored(trainer.averaged))
    return trainer


def _start(weights: Path, model: PreviewModel, seed: int) -> PreviewModel:
    """The model with the weights of an earlier run if there are any, else with fresh ones."""
    if not weights.exists():
        return start_weights_(model, torch.Generator().manual_seed(seed))
    logger.info("%s: continues from %s", FOLDER, weights)
    model.load_state_dict(load_file(weights))
    return model


def demo_config() -> PreviewConfig:
    """The architecture that the demo's profiles name."""
    return validate(PreviewConfig, json.loads(CONFIG_FILE.read_text(encoding="utf-8")), CONFIG_FILE.name)


def stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as the file holds them: matrices in bf16; vectors and everything small, which decide much, in fp32."""
    return {
        name: tensor.bfloat16() if tensor.dim() > 1 and tensor.numel() >= SMALL_TENSOR else tensor.float()
        for name, tensor in tensors.items()
    }
