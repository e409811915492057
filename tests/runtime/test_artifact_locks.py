"""Two processes of a host that come to the same artifact on the CPU: one makes it, the other finds it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import InfrastructureError
from magi2.jobs.render import ClipRender
from magi2.runtime.lock import artifact_locks, work_lock
from magi2.stages.context import StageContext
from magi2.stages.enhance import EnhanceStage
from magi2.stages.progress import Silent
from magi2.stages.render import run_stage
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip, make_context, small_profile

PROFILE = small_profile()
CLIP = make_clip(PROFILE)


class Waiter(Silent):
    def __init__(self) -> None:
        self.waits = threading.Event()

    def waiting(self, reason: str | None = None) -> None:
        self.waits.set()


class OtherProcess(threading.Thread):
    """Holds the lock of the clip's caption until it is waited for, and makes the caption or does not."""

    def __init__(self, context: StageContext, store: Path, waiter: Waiter, *, succeeds: bool) -> None:
        super().__init__()
        self._context, self._store, self._waiter, self._succeeds = context, store, waiter, succeeds
        self.holds = threading.Event()

    def run(self) -> None:
        stage = EnhanceStage(self._context)
        with artifact_locks(str(self._store), lambda: None)(stage.recipe(CLIP)):
            self.holds.set()
            assert self._waiter.waits.wait(30)
            if self._succeeds:
                stage._find_or_make(stage.recipe(CLIP), lambda models, folder: stage.make(CLIP, models, folder))


def enhance(checkpoint: Path, store: Path, *clips: Clip, succeeds: bool) -> tuple[list[str], bool]:
    """States of the clips while another process is at the first, and whether anybody had to wait."""
    waiter = Waiter()
    other = OtherProcess(make_context(checkpoint, store, PROFILE), store, waiter, succeeds=succeeds)
    other.start()
    assert other.holds.wait(30)
    context = make_context(checkpoint, store, PROFILE)
    context.artifact_lock = artifact_locks(str(store), waiter.waiting)
    results = run_stage(context, StageName.ENHANCE, clips)
    waits = waiter.waits.is_set()
    waiter.waits.set()
    other.join()
    return [result.state for result in results], waits


@pytest.mark.slow
def test_who_waits_finds_what_the_other_made(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert enhance(tiny_checkpoint, tmp_path, CLIP, succeeds=True) == (["reused"], True)


@pytest.mark.slow
def test_who_waits_makes_what_the_other_did_not(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert enhance(tiny_checkpoint, tmp_path, CLIP, succeeds=False) == (["made"], True)


@pytest.mark.slow
def test_other_clips_are_not_waited_for(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = make_clip(PROFILE, prompt="a kite over dunes")
    assert enhance(tiny_checkpoint, tmp_path, other, succeeds=True) == (["made"], False)


@pytest.mark.slow
def test_command_on_the_cpu_takes_these_locks(tiny_checkpoint: Path, tmp_path: Path) -> None:
    settings = Settings(ckpt_root=tiny_checkpoint, store=str(tmp_path), device="cpu")
    work = ClipRender([CLIP], {PROFILE.digest(): PROFILE}, Deployment(settings), progress=Silent())
    [context] = work.contexts().values()
    recipe = EnhanceStage(context).recipe(CLIP)
    with context.artifact_lock(recipe), pytest.raises(InfrastructureError):
        work_lock(str(tmp_path), recipe.stage, recipe.key, timeout_s=0).__enter__()
