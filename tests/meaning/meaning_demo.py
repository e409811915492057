"""The demo checkpoint in tests: where it lies, what of it is missing, and where its clips are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
CONFIGS = Settings().configs


def needs(*files: str) -> pytest.MarkDecorator:
    """Skips what cannot be done before these files of the checkpoint are trained, naming the first that is not."""
    missing = next((name for name in files if not (CHECKPOINT / name).is_file()), None)
    return pytest.mark.skipif(missing is not None, reason=f"examples/demo_checkpoint/{missing} is not trained yet")


def demo_profile(name: str, *overrides: str) -> Profile:
    """A profile of the demo."""
    return load_profile(name, CONFIGS, overrides)


def demo_settings(store: Path, checkpoint: Path = CHECKPOINT) -> Settings:
    """A deployment of its own, on one rank."""
    return Settings(ckpt_root=checkpoint, store=str(store), configs=CONFIGS, device="cpu")
