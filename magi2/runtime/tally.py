"""What all groups of processes that worked on one job have told, one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from magi2.errors import Magi2Error
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded
from magi2.runtime.job import LostClip

logger = logging.getLogger(__name__)

MAX_LOSSES = 3
"""So many groups lost in a row, and no clip made, are no clip's fault."""


class ClipLostError(Exception):
    """A group ended by a clip that it did not survive; `error` is what the group as a whole would have ended with."""

    def __init__(self, clip: LostClip, error: Magi2Error) -> None:
        super().__init__(clip.clip_id)
        self.clip = clip
        self.error = error


@dataclass
class Tally:
    """What all groups of a job have told so far; a clip that an earlier group finished is not told again."""

    on_event: Callable[[Event], None]
    clips: dict[str, ClipFinished] = field(default_factory=dict)
    models_loaded_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    _losses: int = 0

    def hear(self, event: Event) -> bool:
        """Take note of an event and pass it on; whether it was news."""
        if isinstance(event, ClipFinished):
            if event.clip_id in self.clips:
                return False
            self.clips[event.clip_id] = event
            self._losses = 0 if event.state != "failed" else self._losses
        if isinstance(event, ModelsLoaded):
            self.models_loaded_s += event.seconds
        self.on_event(event)
        return True

    def lost(self, loss: ClipLostError) -> tuple[LostClip, ...]:
        """The clips that the next group must not try. Raises the loss's error when it was one too many."""
        self._losses += 1
        if self._losses >= MAX_LOSSES:
            raise loss.error
        logger.error("clip %s has failed, a new group goes on without it: %s", loss.clip.clip_id[:12], loss.error)
        failed = [clip for clip in self.clips.values() if clip.state == "failed"]
        earlier = [LostClip(clip.clip_id, clip.error_code or Magi2Error.code, clip.error or "") for clip in failed]
        return (*earlier, loss.clip)
