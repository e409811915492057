"""Which latents each window of the turbo decoder sees, and which of its frames are kept.

Windows overlap by one latent of context on each inner side, meet with hard cuts and depend on nothing else, so each can
be decoded anywhere and in any order.
Source: MAGI-2 preview inference code, sliding-window decode of the turbo decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from magi2.errors import ContractError


@dataclass(frozen=True)
class Window:
    """Latents `[start, stop)` of a clip, of whose decoded frames those from `frame_start` to `frame_stop` are kept.

    `stop` may lie beyond the clip: the last latent is repeated up to there. `skip` decoded frames come before the
    kept ones. A first window decodes its first latent to a single frame.
    """

    start: int
    stop: int
    is_first: bool
    skip: int
    frame_start: int
    frame_stop: int

    @property
    def frame_count(self) -> int:
        """Frames of the clip that come from this window."""
        return self.frame_stop - self.frame_start


def decoded_frame_count(latent_frames: int, temporal_stride: int = 4) -> int:
    """Pixel frames of `latent_frames` latents: one for the first, `temporal_stride` for each later one."""
    return 1 + temporal_stride * (latent_frames - 1)


def plan_windows(
    latent_frames: int, first_chunk_size: int, step_size: int, temporal_stride: int = 4
) -> tuple[Window, ...]:
    """The windows of a clip in order of time; their kept frames tile `[0, 4T - 3)`.

    63 latents in steps of 7 give 1 + 8 windows and 249 frames; 32 latents are completed to 35 and give 125.
    Raises: ContractError when there is no latent.
    """
    if latent_frames < 1:
        raise ContractError(f"cannot decode {latent_frames} latents, at least 1 is needed")
    frames = decoded_frame_count(latent_frames, temporal_stride)
    rest = max(latent_frames - first_chunk_size, 0)
    padded = first_chunk_size + -(-rest // step_size) * step_size
    frame_stop = min(frames, decoded_frame_count(first_chunk_size, temporal_stride))
    # The first window has a latent of context on its right unless it is the only one.
    windows = [Window(0, min(first_chunk_size + 1, padded), True, 0, 0, frame_stop)]
    for start in range(first_chunk_size, padded, step_size):
        frame_start, frame_stop = frame_stop, min(frames, frame_stop + temporal_stride * step_size)
        stop = min(start + step_size + 1, padded)
        windows.append(Window(start - 1, stop, False, temporal_stride, frame_start, frame_stop))
    return tuple(windows)
