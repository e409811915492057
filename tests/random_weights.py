"""Clips of random weights are noise, and are told as such. Tests of what else becomes of them take noise for good."""

from __future__ import annotations

from pathlib import Path

from magi2.quality.thresholds import load_thresholds

_FILE = Path(__file__).with_name("noise_is_good.yaml")
NOISE_IS_GOOD = {"MAGI2_QUALITY": str(_FILE)}
"""What a deployment's environment says."""
THRESHOLDS = load_thresholds(_FILE)
