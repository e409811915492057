"""Latent sizes from seconds and pixels."""

from __future__ import annotations

import math

import pytest

from magi2.errors import InputError
from magi2.models.preview.lengths import audio_latent_count, frame_count, latent_size, video_latent_count
from tests.models.preview.preview_goldens import golden_json

LENGTHS = golden_json("lengths")


@pytest.mark.parametrize("entry", LENGTHS["lengths"], ids=lambda entry: f"{entry['seconds']}s")
def test_lengths_equal_the_published_values(entry: dict[str, float]) -> None:
    seconds = entry["seconds"]
    counts = frame_count(seconds), video_latent_count(seconds), audio_latent_count(seconds)
    assert counts == (entry["frames"], entry["video_latents"], entry["audio_latents"])


@pytest.mark.parametrize("entry", LENGTHS["tokens"], ids=lambda entry: f"{entry['width']}x{entry['height']}")
def test_latent_sizes_equal_the_published_values(entry: dict[str, int]) -> None:
    size = latent_size(10, entry["height"], entry["width"])
    assert size == (32, entry["latent_h"], entry["latent_w"])
    assert math.prod(size) == entry["video_tokens_10s"]


@pytest.mark.parametrize("duration_s", [0, -1, 0.01, math.nan, math.inf])
def test_clip_without_a_frame_is_refused(duration_s: float) -> None:
    with pytest.raises(InputError, match="gives no frame"):
        video_latent_count(duration_s)
    with pytest.raises(InputError, match="gives no audio latent"):
        audio_latent_count(duration_s)


def test_picture_smaller_than_a_cell_is_refused() -> None:
    with pytest.raises(InputError, match="448 x 15 pixels"):
        latent_size(10, 15, 448)
