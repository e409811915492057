"""The window plan: tiles the clip, keeps one latent of context, completes the last window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magi2.errors import ContractError
from magi2.models.turbo_vae.windows import Window, decoded_frame_count, plan_windows


def test_refined_clip_is_one_and_eight_windows() -> None:
    windows = plan_windows(63, 7, 7)
    assert [window.frame_count for window in windows] == [25] + [28] * 8
    assert windows[0] == Window(0, 8, True, 0, 0, 25)
    assert windows[1] == Window(6, 15, False, 4, 25, 53)
    assert windows[-1] == Window(55, 63, False, 4, 221, 249)


def test_preview_clip_is_completed_with_three_latents() -> None:
    windows = plan_windows(32, 7, 7)
    assert len(windows) == 5
    assert windows[-1] == Window(27, 35, False, 4, 109, 125)


@pytest.mark.parametrize("latents", range(1, 8))
def test_clip_up_to_the_first_chunk_is_one_window_without_context(latents: int) -> None:
    assert plan_windows(latents, 7, 7) == (Window(0, 7, True, 0, 0, 4 * latents - 3),)


@given(latents=st.integers(1, 80), first=st.integers(1, 9), step=st.integers(1, 9))
def test_kept_frames_tile_the_clip(latents: int, first: int, step: int) -> None:
    windows = plan_windows(latents, first, step)
    edges = [windows[0].frame_start, *(window.frame_stop for window in windows)]
    assert edges == [0, *(window.frame_start for window in windows[1:]), decoded_frame_count(latents)]
    assert all(window.frame_count > 0 and window.start < latents for window in windows)
    for window in windows:
        decoded = 4 * (window.stop - window.start) - (3 if window.is_first else 0)
        assert window.skip + window.frame_count <= decoded


def test_clip_without_latents_is_refused() -> None:
    with pytest.raises(ContractError, match="cannot decode 0 latents"):
        plan_windows(0, 7, 7)
