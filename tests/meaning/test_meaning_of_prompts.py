"""What prompts say is what the clips show and sound like, whatever happens to them on the way.

All of it comes with the marker `demo_world`; `make test` renders and judges the prompt of the README.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from demo_world.judge import Verdict
from demo_world.measure.judged import Job, Judged, Work, make_and_judge
from demo_world.measure.wanted import Kind, Wanted, draw_reference
from demo_world.reading import read_caption
from demo_world.scenes import Scene
from magi2.artifacts.local import LocalStore
from magi2.deployment import Deployment
from magi2.jobs.render import ClipRender
from magi2.stages.progress import Silent
from magi2.types import Clip, StageName
from tests.meaning.meaning_demo import CHECKPOINT, CONFIGS, demo_profile, demo_settings
from tests.render_helpers import make_clip

PROMPTS: dict[str, tuple[Kind, str]] = {
    "english": (
        "preview",
        "A large red circle moves slowly from left to right on a blue background, with a low tone.",
    ),
    "chinese": ("preview", "一个小的黄色正方形在黑色背景上快速地上下弹跳，声音是每次弹跳时的哔声。"),
    "image": ("image", "The object of <Figure 1> moves slowly from right to left, with a rising tone."),
    "refined": (
        "refined",
        "A small white square moves quickly from side to side on a green background, with a beep on each contact.",
    ),
}
PICTURED = Scene("triangle", "green", "white", "large", "slow", "still", "low")
"""What the reference image shows."""
UNTIL_PREVIEW = ("enhance", "negative", "encode")


@dataclass(frozen=True)
class Rendered:
    """A store in which clips are rendered from their prompts when they are first asked for."""

    store: Path
    jobs: dict[str, Job]
    _judged: dict[str, Judged] = field(default_factory=dict)

    def judged(self, name: str) -> Judged:
        """What was made of a prompt, and what it shows."""
        if name not in self._judged:
            (self._judged[name],) = make_and_judge([self.jobs[name]], work(self.store))
        return self._judged[name]

    def verdict(self, name: str) -> Verdict:
        """Of a clip that was made."""
        judged = self.judged(name)
        assert judged.verdict is not None, judged.error
        return judged.verdict

    def copy(self, folder: Path, *stages: str) -> Path:
        """A store that has the clips' artifacts of some stages alone."""
        for stage in stages:
            shutil.copytree(self.store / "artifacts" / stage, folder / "artifacts" / stage)
        return folder


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    folder = tmp_path_factory.mktemp("meaning")
    image = folder / "pictured.png"
    draw_reference(PICTURED, random.Random(1), image)
    return Rendered(folder / "store", {name: make_job(name, image) for name in PROMPTS})


def make_job(name: str, image: Path) -> Job:
    kind, prompt = PROMPTS[name]
    pictured = kind == "image"
    wanted = Wanted(kind, name, prompt, seed=1, asked=read_caption(prompt, pictured=PICTURED if pictured else None))
    profile = demo_profile(str(wanted.row["profile"]))
    return make_clip(profile, prompt, seed=1, image=image if pictured else None), (wanted,)


def work(store: Path, *overrides: str) -> Work:
    """The demo's profiles, in a store."""
    profiles = [demo_profile(name, *overrides) for name in ("demo", "demo-refined")]
    return Work(demo_settings(store), {profile.digest(): profile for profile in profiles})


@pytest.mark.demo_world
@pytest.mark.parametrize("name", PROMPTS)
def test_clip_shows_and_sounds_like_its_prompt(rendered: Rendered, name: str) -> None:
    verdict = rendered.verdict(name)
    assert verdict.wrong == (), verdict.as_json()
    assert verdict.has_all_five and ("sync" in verdict.passed) == (name in ("chinese", "refined"))


@pytest.mark.demo_world
def test_killed_clip_goes_on_from_its_snapshot_and_is_the_clip_of_an_unbroken_run(
    rendered: Rendered, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unbroken = rendered.judged("english").clip
    store = rendered.copy(tmp_path / "store", *UNTIL_PREVIEW)
    clip, _ = rendered.jobs["english"]
    kill_while_denoising(clip, store)
    assert not (store / "artifacts" / "preview").exists(), "the clip was killed too late"
    with caplog.at_level("INFO", logger="magi2.stages.snapshots"):
        (again,) = make_and_judge([rendered.jobs["english"]], work(store))
    assert "from step" in caplog.text
    assert again.is_right, again
    assert again.clip is not None and unbroken is not None
    assert again.clip.read_bytes() == unbroken.read_bytes()


@pytest.mark.demo_world
def test_clip_delivered_anew_from_stored_latents_means_the_same(rendered: Rendered, tmp_path: Path) -> None:
    assert rendered.judged("chinese").is_right
    store = rendered.copy(tmp_path / "store", *UNTIL_PREVIEW, "preview")
    smaller = work(store, "delivery.size=[512,256]", "delivery.crf=30")
    clip, wanted = rendered.jobs["chinese"]
    profile = next(iter(smaller.profiles.values()))
    previews = list((store / "artifacts" / "preview").rglob("manifest.json"))
    (again,) = make_and_judge([(make_clip(profile, clip.prompt, clip.seed), wanted)], smaller)
    assert again.is_right, again
    assert list((store / "artifacts" / "preview").rglob("manifest.json")) == previews


@pytest.mark.demo_world
@pytest.mark.ranks
def test_clip_of_another_shard_and_layout_means_the_same(
    rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rendered.judged("image").is_right
    store = rendered.copy(tmp_path / "store", *UNTIL_PREVIEW)
    own_corner(tmp_path / "run", monkeypatch)
    for name, value in environment(store).items():
        monkeypatch.setenv(name, value)
    clip, _ = rendered.jobs["image"]
    profiles = {clip.profile_digest: work(store).profiles[clip.profile_digest]}
    spread = ClipRender([clip], profiles, Deployment.from_environment(), layout="sp1.cfg2.ep2", progress=Silent())
    assert [result.state for result in spread.run_stage(StageName.PREVIEW)] == ["made"]
    (again,) = make_and_judge([rendered.jobs["image"]], work(store))
    assert again.is_right, again


def own_corner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, jobs and logs of the test's own."""
    folder.mkdir()
    monkeypatch.setattr("magi2.runtime.launcher.run_folder", lambda _: folder)


def environment(store: Path) -> dict[str, str]:
    """The deployment as other processes hear of it."""
    settings = {"CKPT_ROOT": CHECKPOINT, "CONFIGS": CONFIGS, "STORE": store, "DEVICE": "cpu", "SNAPSHOT_EVERY": 5}
    return {f"MAGI2_{name}": str(value) for name, value in settings.items()}


def kill_while_denoising(clip: Clip, store: Path) -> None:
    """End a process that makes the clip's preview as soon as its first snapshot is there."""
    arguments = ["stage", "preview", "--prompt", clip.prompt, "--seed", clip.seed, "--profile", clip.profile_name]
    command = [sys.executable, "-m", "magi2.cli.main", *map(str, arguments)]
    process = subprocess.Popen(command, env=os.environ | environment(store), stderr=subprocess.DEVNULL)
    try:
        for _ in seconds(300):
            assert process.poll() is None, "the process ended before it could be killed"
            if list(LocalStore(store).list_documents("snapshots")):
                return
        raise AssertionError("no snapshot was saved")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def seconds(limit: float) -> Iterator[None]:
    """Ten times a second until the limit."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)
