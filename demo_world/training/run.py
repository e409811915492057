"""The parts of the demo checkpoint, in the order in which they are trained, and how long each may take."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from demo_world.audio_autoencoder import write_audio_autoencoder
from demo_world.training import decoder, encoder, preview, refiner, text
from demo_world.training.pace import Pace
from magi2.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What a run may choose; `seconds` and `steps` limit every part, whose own limits hold where they are None."""

    device: torch.device
    seed: int = 1
    seconds: float | None = None
    steps: int | None = None
    compiled: bool = False
    batch_size: int = preview.BATCH_SIZE
    clip_count: int = preview.CLIP_COUNT
    latent_frames: int = preview.LATENT_FRAMES

    def pace(self, *, seconds: float, steps: int) -> Pace:
        """The pace of a part with these limits of its own."""
        return Pace(seconds=self.seconds or seconds, steps=self.steps or steps)


@dataclass(frozen=True)
class Part:
    """A part that may be trained by itself: how, and what has to be in the folder before."""

    train: Callable[[Path, Options], None]
    needs: tuple[str, ...] = ()


def train_parts(folder: Path, names: Sequence[str], options: Options) -> None:
    """Train the parts named, in the order of `PARTS`, each into its place below `folder`.

    Raises: CheckpointError when one needs a part that is neither there nor named.
    """
    for name in (name for name in PARTS if name in names):
        for needed in PARTS[name].needs:
            if not (folder / needed / "model.safetensors").is_file():
                raise CheckpointError(f"{folder / needed}: not trained yet, {name} needs it", hint="name it in --parts")
        begin = time.monotonic()
        PARTS[name].train(folder, options)
        logger.info("%s: done after %.0f s", name, time.monotonic() - begin)


def _train_text(folder: Path, options: Options) -> None:
    pace = options.pace(seconds=180, steps=text.DEFAULT_STEPS)
    text.train(folder, device=options.device, pace=pace, seed=options.seed)


def _write_audio(folder: Path, options: Options) -> None:
    write_audio_autoencoder(folder / "stable-audio-open-1.0")


def _train_encoder(folder: Path, options: Options) -> None:
    pace = options.pace(seconds=180, steps=encoder.DEFAULT_STEPS)
    encoder.train(folder, device=options.device, pace=pace, seed=options.seed)


def _train_decoder(folder: Path, options: Options) -> None:
    pace = options.pace(seconds=300, steps=decoder.DEFAULT_STEPS)
    decoder.train(folder, device=options.device, pace=pace, seed=options.seed)


def _train_preview(folder: Path, options: Options) -> None:
    preview.train(
        folder,
        device=options.device,
        pace=options.pace(seconds=540, steps=preview.DEFAULT_STEPS),
        seed=options.seed,
        compiled=options.compiled,
        batch_size=options.batch_size,
        clip_count=options.clip_count,
        latent_frames=options.latent_frames,
    )


def _train_refiner(folder: Path, options: Options) -> None:
    pace = options.pace(seconds=240, steps=refiner.DEFAULT_STEPS)
    refiner.train(folder, device=options.device, pace=pace, seed=options.seed)


PARTS: dict[str, Part] = {
    "text": Part(_train_text),
    "audio": Part(_write_audio),
    "encoder": Part(_train_encoder),
    "decoder": Part(_train_decoder),
    "preview": Part(_train_preview, needs=(text.FOLDER,)),
    "refiner": Part(_train_refiner, needs=(text.FOLDER,)),
}
