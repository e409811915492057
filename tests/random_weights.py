"""Clips of random weights are noise, and are told as such. Tests of what else becomes of them take noise for good."""

from __future__ import annotations

from pathlib import Path

NOISE_IS_GOOD = {"MAGI2_QUALITY": str(Path(__file__).with_name("noise_is_good.yaml"))}
"""What a deployment's environment says."""
