"""How the shape moves, how fast, and when it touches something."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from demo_world.judge.form import turns_per_second
from demo_world.judge.looking import Look
from demo_world.scenes import Motion, Shape, Speed
from demo_world.takes import CROSSING_S, TURN_S

LEAST_SWING_X, LEAST_SWING_Y = 0.25, 0.10
"""What a track must come back by, in scene units, for its furthest point to be a turning point."""
LEAST_WAY_X, LEAST_WAY_Y = 0.45, 0.17
"""What lies between the beginning and the end of something that moves that way."""
LEAST_TURNS_PER_SECOND = 1 / 24
FAST_CONTACTS = 6
"""In ten seconds: slow contacts are 2.4 s apart, fast ones 1.2 s."""


def measure_motion(seen: Look, shape: Shape | None) -> Motion | None:
    """Which of the motions it is: back and forth, in one direction, turning, or none; None without a shape."""
    if seen.is_empty:
        return None
    if len(turning_points(seen.x, LEAST_SWING_X)) >= 2:
        return "sway"
    if len(turning_points(seen.y, LEAST_SWING_Y)) >= 2:
        return "bounce"
    across, down = (_end(track) - _beginning(track) for track in (seen.x, seen.y))
    vertical = ("down" if down > 0 else "up") if abs(down) > LEAST_WAY_Y else ""
    horizontal = ("right" if across > 0 else "left") if abs(across) > LEAST_WAY_X else ""
    direction = "_".join(word for word in (vertical, horizontal) if word)
    if direction:
        return cast(Motion, direction)
    return "spin" if abs(turns_per_second(seen, shape)) > LEAST_TURNS_PER_SECOND else "still"


def measure_speed(seen: Look, motion: Motion | None, shape: Shape | None) -> Speed | None:
    """Slow or fast, by contacts, by turns, or by how far it is after half the slow crossing; None at rest."""
    if motion in (None, "still"):
        return None
    if motion == "spin":
        return "fast" if abs(turns_per_second(seen, shape)) > (1 / TURN_S["slow"] + 1 / TURN_S["fast"]) / 2 else "slow"
    if motion in ("bounce", "sway"):
        return "fast" if len(contacts(seen, motion)) >= FAST_CONTACTS else "slow"
    track = seen.x if motion.endswith(("right", "left")) else seen.y
    half = round(CROSSING_S["fast"] * seen.fps)
    done = (track[half - 2 : half + 3].mean() - _beginning(track)) / (_end(track) - _beginning(track))
    return "fast" if done > 0.75 else "slow"


def contacts(seen: Look, motion: Motion | None) -> list[float]:
    """Seconds at which a bouncing shape is lowest, or a swaying one at either wall; the clip's edges do not count."""
    if motion == "bounce":
        return [frame / seen.fps for frame, is_highest in turning_points(seen.y, LEAST_SWING_Y) if is_highest]
    if motion == "sway":
        return [frame / seen.fps for frame, _ in turning_points(seen.x, LEAST_SWING_X)]
    return []


def turning_points(track: Tensor, least_swing: float) -> list[tuple[int, bool]]:
    """Frames at which a track turns back by `least_swing`, each with whether it is a maximum."""
    values: list[float] = track.tolist()
    found: list[tuple[int, bool]] = []
    furthest, frame, is_rising = values[0], 0, None
    for index, value in enumerate(values):
        if is_rising is None:
            if abs(value - values[0]) > least_swing:
                furthest, frame, is_rising = value, index, value > values[0]
        elif value != furthest and (value > furthest) == is_rising:
            furthest, frame = value, index
        elif abs(value - furthest) > least_swing:
            found.append((frame, is_rising))
            furthest, frame, is_rising = value, index, not is_rising
    return found


def _beginning(track: Tensor) -> Tensor:
    return track[:3].mean()


def _end(track: Tensor) -> Tensor:
    return track[-8:].mean()
