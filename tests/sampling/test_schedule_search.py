"""The search finds the schedule that is best for a model in which it is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.preview import denoise_preview
from magi2.sampling.schedule import EVERY_STEP, Schedule
from magi2.sampling.search import Trial, Watched, find_schedule, relative_l2
from magi2.sampling.unipc import FlowUniPC

STEPS, SHIFT = 10, 3.0
GUIDANCE = GuidanceConfig(video_txt_guidance_scale=2.0, audio_txt_guidance_scale=2.0)
TURNS = (0.0, 0.9, 1.7, 2.1, 2.8, 3.3, 4.1, 4.6, 5.3, 6.1)


class Planted:
    """Velocities that turn from step to step by `angles`, and under guidance by `pull` besides."""

    def __init__(self, angles: Sequence[float], pull: Sequence[float]) -> None:
        timesteps = FlowUniPC(STEPS, SHIFT).timesteps.tolist()
        self._of_step = dict(zip(timesteps, zip(angles, pull, strict=True), strict=True))

    def __call__(self, video: Tensor, audio: Tensor, timestep: Tensor, branches: int) -> tuple[Tensor, Tensor]:
        angle, pull = self._of_step[int(timestep)]
        both = torch.tensor([angle, angle - pull])[:branches]
        return (
            torch.stack([torch.cos(both), torch.sin(both)], dim=1)
            .view(branches, 2, 1, 1, 1)
            .expand(-1, *video.shape[1:]),
            torch.stack([torch.sin(both), torch.cos(both)], dim=1).view(branches, 1, 2).expand(-1, *audio.shape[1:]),
        )


def search(model: Planted, evaluations: int, trials: int = 16) -> list[Trial]:
    noise = torch.ones(1, 2, 1, 1, 1), torch.ones(1, 1, 2)

    def run(model: Planted | Watched, schedule: Schedule) -> tuple[Tensor, Tensor]:
        settings = {"num_steps": STEPS, "shift": SHIFT, "guidance": GUIDANCE, "schedule": schedule}
        return denoise_preview(model, 2, *noise, conditional_layout=1, **settings)  # type: ignore[arg-type]

    guide = Guidance(GUIDANCE, latent_frames=1, device="cpu")
    watched = Watched(model, guide, FlowUniPC(STEPS, SHIFT).sigmas)
    whole = run(watched, EVERY_STEP)

    def measure(schedule: Schedule) -> float:
        return max(relative_l2(*pair) for pair in zip(run(model, schedule), whole, strict=True))

    return find_schedule(measure, watched.errors, evaluations=evaluations, trials=trials)


def still(*steps: int) -> list[float]:
    """The turns, but at these steps the velocity is that of the step before."""
    angles = list(TURNS)
    for step in steps:
        angles[step] = angles[step - 1]
    return angles


@pytest.mark.parametrize(
    ("angles", "pull", "evaluations", "planted"),
    [
        (still(5), [0.4] * STEPS, 18, Schedule(None, (5,))),
        (still(3, 4, 7), [0.4] * STEPS, 14, Schedule(None, (3, 4, 7))),
        (TURNS, [0.4] * 6 + [0.0] * 4, 16, Schedule(6)),
        (still(2, 8), [0.4] * 5 + [0.0] * 5, 12, Schedule(5, (2, 8))),
    ],
    ids=["one still step", "two in a row and one", "guidance that ends", "both"],
)
def test_a_planted_schedule_is_found(
    angles: Sequence[float], pull: Sequence[float], evaluations: int, planted: Schedule
) -> None:
    tried = search(Planted(angles, pull), evaluations)
    assert tried[0].schedule == planted and tried[0].error < 1e-5
    assert tried[1].error > 1e-3


def test_every_trial_keeps_to_the_evaluations_and_the_rules() -> None:
    tried = search(Planted(TURNS, [0.4] * STEPS), 9, trials=20)
    assert 1 < len(tried) <= 20
    assert all(trial.schedule.objection(STEPS) is None for trial in tried)
    assert all(trial.schedule.evaluations(STEPS) <= 9 for trial in tried)
    assert [trial.error for trial in tried] == sorted(trial.error for trial in tried)


def test_too_few_evaluations_have_no_schedule() -> None:
    assert search(Planted(TURNS, [0.4] * STEPS), 3) == []
