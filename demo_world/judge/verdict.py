"""Everything that is measured on one clip, held against what its prompt asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demo_world.judge.form import measure_shape, measure_size
from demo_world.judge.listening import Heard, listen_to
from demo_world.judge.looking import Look, look_at
from demo_world.judge.movement import contacts, measure_motion, measure_speed
from demo_world.reading import Request
from demo_world.scenes import Motion, Shape, Size, Speed

SYNC_TOLERANCE_S = 0.12
"""Furthest that a beep may be from its contact: three frames at 25 per second."""
SYNC_SHARE = 0.9
"""Of the contacts that must beep for picture and sound to be together."""
ALL_FIVE = ("colour", "background", "shape", "motion", "sound")


@dataclass(frozen=True)
class Measured:
    """What a clip shows and sounds like; None where nothing of the kind was found."""

    colour: str | None
    background: str | None
    shape: Shape | None
    size: Size | None
    motion: Motion | None
    speed: Speed | None
    sound: str


@dataclass(frozen=True)
class Verdict:
    """Per measure that the prompt speaks of, whether it is right; what was measured; beep offsets in seconds.

    `passed` has `size` and `speed` only where they were asked for, and `sync` only where the clip beeps as asked.
    """

    passed: dict[str, bool]
    measured: Measured
    offsets: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Whether every measure is."""
        return all(self.passed.values())

    @property
    def has_all_five(self) -> bool:
        """Whether colour, background, shape, motion and sound are right."""
        return all(self.passed[name] for name in ALL_FIVE)

    @property
    def wrong(self) -> tuple[str, ...]:
        """The measures that are not."""
        return tuple(name for name, is_right in self.passed.items() if not is_right)

    def as_json(self) -> dict[str, Any]:
        """The verdict for a file or a terminal."""
        return {"right": self.is_right, "wrong": self.wrong, "measured": asdict(self.measured), "offsets": self.offsets}


def judge_clip(path: Path, asked: Request) -> Verdict:
    """Measure the delivered file at `path`, of any size and rate, against `asked`.

    Raises: MediaError when its picture or its sound is missing or cannot be read.
    """
    return judge(look_at(path), listen_to(path), asked)


def judge(seen: Look, heard: Heard, asked: Request) -> Verdict:
    """The verdict on what was seen and heard."""
    shape = measure_shape(seen)
    motion = measure_motion(seen, shape)
    measured = Measured(
        colour=seen.colour,
        background=seen.background,
        shape=shape,
        size=measure_size(seen, shape),
        motion=motion,
        speed=measure_speed(seen, motion, shape),
        sound=heard.sound,
    )
    passed = {name: getattr(measured, name) == value for name, value in vars(asked).items() if value is not None}
    offsets: tuple[float, ...] = ()
    if asked.sound == "beeps" and passed["sound"] and passed["motion"]:
        offsets = _offsets(contacts(seen, motion), heard.onsets)
        passed["sync"] = sum(offset <= SYNC_TOLERANCE_S for offset in offsets) >= SYNC_SHARE * len(offsets)
    return Verdict(passed, measured, offsets)


def _offsets(touched: Iterable[float], onsets: tuple[float, ...]) -> tuple[float, ...]:
    """Seconds from each contact to the nearest beep."""
    return tuple(round(min(abs(moment - onset) for onset in onsets), 3) for moment in touched)
