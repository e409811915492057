"""The demo checkpoint in tests: where it lies, and where its clips are made."""

from __future__ import annotations

from pathlib import Path

from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
CONFIGS = Settings().configs


def demo_profile(name: str, *overrides: str) -> Profile:
    """A profile of the demo."""
    return load_profile(name, CONFIGS, overrides)


def demo_settings(store: Path, checkpoint: Path = CHECKPOINT) -> Settings:
    """A deployment of its own, on one rank."""
    return Settings(ckpt_root=checkpoint, store=str(store), configs=CONFIGS, device="cpu")
