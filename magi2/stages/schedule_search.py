"""The search for a schedule on real clips: encoded prompts, the preview model on this device, noise by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import mean
from typing import Any

from torch import Tensor

from magi2.config.profile import PreviewSettings
from magi2.errors import InputError
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel
from magi2.sampling.guidance import Guidance
from magi2.sampling.preview import denoise_preview
from magi2.sampling.schedule import EVERY_STEP, GUIDED, Schedule
from magi2.sampling.search import StepErrors, Trial, Watched, cosine, find_schedule, mean_errors, relative_l2
from magi2.sampling.unipc import FlowUniPC
from magi2.stages.context import StageContext
from magi2.stages.preview import PreviewStage, load_conditioning
from magi2.types import Clip

CONFIRMED = 1.5
"""How much further the latents of other prompts may be moved than those of the search."""


@dataclass(frozen=True)
class Distance:
    """How far a clip's latents are from those of every evaluation."""

    clip: str
    video_cosine: float
    video_relative_l2: float
    audio_cosine: float
    audio_relative_l2: float

    @property
    def error(self) -> float:
        """Of picture and sound, whichever is moved further."""
        return max(self.video_relative_l2, self.audio_relative_l2)


@dataclass(frozen=True)
class Found:
    """The schedule of a share of the evaluations, and how it did on the prompts of the search and on others."""

    schedule: Schedule
    evaluations: int
    share: float
    searched: tuple[Distance, ...]
    others: tuple[Distance, ...]
    trials: tuple[Trial, ...]

    @property
    def is_confirmed(self) -> bool:
        """Whether it does about as well on prompts that the search has not seen."""
        others, searched = (mean(each.error for each in clips) for clips in (self.others, self.searched))
        return others <= CONFIRMED * searched

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        trials = [{"schedule": trial.schedule.to_json(), "error": trial.error} for trial in self.trials]
        return {
            "schedule": self.schedule.to_json(),
            "evaluations": self.evaluations,
            "share": round(self.share, 4),
            "confirmed": self.is_confirmed,
            "searched": [asdict(each) for each in self.searched],
            "others": [asdict(each) for each in self.others],
            "trials": trials,
        }


class ScheduleSearch:
    """Clips whose prompts are encoded, with the runs that evaluate everything; `others` confirm what is found.

    Raises: InputError without clips on either side, or for a profile that leaves out evaluations itself; what the
    stages raise when an artifact is missing.
    """

    def __init__(
        self,
        context: StageContext,
        clips: Sequence[Clip],
        others: Sequence[Clip],
        *,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        settings = context.book.profile.preview
        if settings.evaluated != EVERY_STEP:
            raise InputError("a schedule is compared with every evaluation: search under quality lossless")
        if not clips or not others:
            raise InputError("the search needs a prompt, and another one to confirm what it finds")
        self._tell = tell
        stage = PreviewStage(context)
        model = stage.load()
        self._searched = [_Run(stage, model, settings, clip) for clip in clips]
        self._others = [_Run(stage, model, settings, clip) for clip in others]
        self._steps = settings.steps
        self._errors: list[StepErrors] = mean_errors([run.errors for run in self._searched])

    def find(self, share: float, *, trials: int) -> Found:
        """The best schedule of at most this share of the evaluations. Raises InputError when there is none."""
        limit = int(share * GUIDED * self._steps)
        tried = find_schedule(self._error, self._errors, evaluations=limit, trials=trials)
        if not tried:
            least = ceil((self._steps - 2) / 3) + 2
            raise InputError(f"{limit} evaluations are too few for {self._steps} steps, of which {least} are evaluated")
        best = tried[0].schedule
        return Found(
            best,
            best.evaluations(self._steps),
            best.share(self._steps),
            tuple(run.distance(best) for run in self._searched),
            tuple(run.distance(best) for run in self._others),
            tuple(tried),
        )

    def _error(self, schedule: Schedule) -> float:
        error = mean(run.distance(schedule).error for run in self._searched)
        self._tell(f"{schedule.share(self._steps):.3f} of the evaluations, error {error:.4f}: {schedule.to_json()}")
        return error


class _Run:
    """One clip: its layouts and noise, its latents by every evaluation, and what its steps would be moved."""

    def __init__(self, stage: PreviewStage, model: PreviewModel, settings: PreviewSettings, clip: Clip) -> None:
        self._settings, self._name = settings, clip.names[0] if clip.names else clip.short_id
        self._layouts = stage.layouts(model, load_conditioning(stage.context, clip), (GUIDED, 1))
        self._noise = stage.noise(clip)
        self._model = model
        guide = Guidance(settings.guidance, latent_frames=self._noise[0].shape[2], device=stage.context.device)
        watched = Watched(model, guide, FlowUniPC(settings.steps, settings.shift).sigmas)
        self._latents = self._denoise(watched, EVERY_STEP)
        self.errors = watched.errors

    def distance(self, schedule: Schedule) -> Distance:
        """How far the schedule's latents are from those of every evaluation."""
        found = self._denoise(self._model, schedule)
        pairs = list(zip(found, self._latents, strict=True))
        (video_cosine, video_l2), (audio_cosine, audio_l2) = ((cosine(*pair), relative_l2(*pair)) for pair in pairs)
        return Distance(self._name, video_cosine, video_l2, audio_cosine, audio_l2)

    def _denoise(self, model: Watched | PreviewModel, schedule: Schedule) -> tuple[Tensor, Tensor]:
        layouts: dict[int, ClipLayout] = self._layouts
        return denoise_preview(
            model,
            layouts[GUIDED],
            *self._noise,
            num_steps=self._settings.steps,
            shift=self._settings.shift,
            guidance=self._settings.guidance,
            schedule=schedule,
            conditional_layout=layouts[1],
        )
