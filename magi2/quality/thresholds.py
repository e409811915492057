"""The thresholds of all defects, in one place: they are in no recipe, and another one remakes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from magi2.config.strict import validate
from magi2.errors import ConfigError


class Thresholds(BaseModel):
    """What counts as a defect. Levels are of 0..255, shares of the clip 0..1; `_s` are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    blank_s: float = Field(0.48, gt=0, description="a black or one-coloured stretch of so long")
    blank_share: float = Field(0.05, gt=0, le=1, description="or so large a share of the clip, in pieces")
    black_peak: float = Field(24.0, description="a frame whose brightest cells are no brighter is black")
    blank_spread: float = Field(8.0, description="a frame whose darkest and brightest cells are no further apart")
    still_s: float = Field(0.8, gt=0, description="a still stretch of so long, where rest is not asked for")
    still_moved: float = Field(1.5, description="the cells that change most have changed no more within 0.4 s")
    silent_s: float = Field(0.8, gt=0, description="a silent stretch of so long, where rest is not asked for")
    silent_db: float = Field(-60.0, description="both channels are no louder")
    spoilt_s: float = Field(0.6, gt=0, description="so long a stretch of any defect below")
    noise: float = Field(10.0, description="noise, and `relative` times the clip's own")
    noise_anywhere: float = Field(45.0, description="noise that no clip has by itself")
    blocks: float = Field(4.0, description="steps at edges of blocks, and `relative` times the clip's own")
    relative: float = Field(3.0, gt=1)
    colour_left: float = Field(0.2, gt=0, lt=1, description="share that is left of the clip's colour")
    colour_least: float = Field(2.0, description="a clip of no more colour cannot lose it")
    flicker: float = Field(3.0, description="brightness that differs so much from that of the frames beside")
    flicker_share: float = Field(0.4, gt=0, le=1, description="in so many of the frames of 0.8 s")
    repeat_step: float = Field(0.3, description="a frame that differs no more from the one before repeats it")
    repeat_share: float = Field(0.3, gt=0, le=1, description="so many of the frames that should move repeat")
    cut_change: float = Field(2.0, description="mean change between frames, and `cut_times` that of those around")
    cut_way: float = Field(20.0, description="or the way of what it shows, in thousandths of its width")
    cut_times: float = Field(3.5, gt=1)
    flash_s: float = Field(0.5, gt=0, description="two cuts that are no further apart are a flash")
    clipped: float = Field(20.0, description="thousandths of samples at full scale")
    offset: float = Field(50.0, description="thousandths of full scale that sound is off its middle")
    dead_db: float = Field(30.0, description="decibels that one channel is below the other, and below `silent_db`")
    inverted: float = Field(-90.0, description="hundredths of correlation of channels that cancel each other")
    harsh_db: float = Field(-12.0, description="loudness of noise that is nothing but noise")
    harsh_crossings: float = Field(35.0, description="hundredths of samples that change sign in such noise")
    short_s: float = Field(0.15, gt=0, description="sound that ends so long before the picture")

    def digest(self) -> str:
        """A short name of these values."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


USUAL = Thresholds()
"""Those of a deployment that names no others."""


def load_thresholds(path: Path | None) -> Thresholds:
    """Those of a YAML file, the others as they are by default; all by default for None.

    Raises: ConfigError naming the file and the key, the nearest valid one for an unknown key.
    """
    if path is None:
        return USUAL
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"MAGI2_QUALITY={path}: cannot be read: {error}") from error
    return validate(Thresholds, data, place=f"MAGI2_QUALITY={path}")
