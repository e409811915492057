"""The worker: which clips it hands to a stage, what it stores, and with what it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from magi2.artifacts import LocalStore
from magi2.batches.documents import results_name
from magi2.batches.plan import save_plan
from magi2.batches.results import failed_clips, read_results, write_results
from magi2.batches.schema import ClipResult
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import (
    CorruptedArtifactError,
    ImageError,
    InfrastructureError,
    InputError,
    Magi2Error,
    MediaError,
    OutOfMemoryError,
)
from magi2.recipes.result import StageResult
from magi2.runtime import worker
from magi2.runtime.exit_codes import ExitCode
from magi2.runtime.job import StageJob
from magi2.runtime.progress import EventProgress
from magi2.types import Clip, StageName
from tests.batch_samples import one_shard
from tests.runtime.runtime_helpers import Machine

Outcome = Callable[[Clip], Magi2Error | None]


def put_shard(store: LocalStore, *, profile_name: str = "tiny", count: int = 3) -> list[Clip]:
    """The documents of a batch of one shard."""
    profile = load_profile(profile_name, Settings().configs)
    clips = [Clip(f"prompt {number}", number, profile.name, profile.digest()) for number in range(count)]
    save_plan(one_shard("batch", profile, clips), store)
    return clips


class Bench:
    """The worker's job without stages: `outcome` says what becomes of a clip."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "store")
        self.asked: list[Clip] = []
        self.outcome: Outcome = lambda clip: None
        self.prepared = 0
        monkeypatch.setattr("magi2.stages.prepare.prepare", self._prepare)
        monkeypatch.setattr("magi2.stages.render.run_stage", self._run_stage)

    def run(self, stage: StageName = StageName.PREVIEW, **values: Any) -> None:
        self.asked = []
        job = StageJob("batch", 0, stage, self.store.url, **values)
        with (self.folder / "events").open("wb") as stream:
            progress = EventProgress(stream.fileno())
            scratch = self.folder / f"scratch-{len(list(self.folder.iterdir()))}"
            worker.run_job(job, scratch, progress, publishes_results=True)

    def rows(self, stage: StageName = StageName.PREVIEW) -> tuple[ClipResult, ...]:
        return read_results(self.store, "batch", 0, stage)

    def _prepare(self, profile: object, settings: Settings, clips: object, **rest: object) -> object:
        assert settings.store == self.store.url
        self.prepared += 1
        self.context = SimpleNamespace(device=torch.device("cpu"))
        return self.context

    def _run_stage(self, context: object, stage: StageName, clips: list[Clip]) -> list[StageResult]:
        self.asked = list(clips)
        results = []
        for clip in clips:
            error = self.outcome(clip)
            state: Any = "failed" if error else "made"
            results.append(StageResult(stage, clip, state, 1.0, None if error else "k", ("flag",), error))
        return results


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_results_of_every_clip_are_stored(bench: Bench) -> None:
    clips = put_shard(bench.store)
    bench.outcome = lambda clip: ImageError("no picture") if clip.seed == 1 else None
    bench.run(attempt=2)
    assert bench.asked == clips
    document = json.loads(bench.store.get_document("batches/batch/results/0.preview.2.json") or b"")
    assert {name: document[name] for name in ("batch_id", "shard", "stage", "attempt")} == {
        "batch_id": "batch",
        "shard": 0,
        "stage": "preview",
        "attempt": 2,
    }
    assert [row["state"] for row in document["results"]] == ["made", "failed", "made"]
    assert document["results"][1] == {
        "clip_id": clips[1].clip_id,
        "state": "failed",
        "key": None,
        "seconds": 1.0,
        "flags": ["flag"],
        "measures": None,
        "error_code": "image",
        "error": "no picture",
    }


def test_clip_that_failed_before_is_left_out(bench: Bench) -> None:
    clips = put_shard(bench.store)
    bench.outcome = lambda clip: InputError("bad") if clip.seed == 2 else None
    bench.run(StageName.ENHANCE)
    bench.outcome = lambda clip: InfrastructureError("net") if clip.seed == 0 else None
    bench.run(StageName.ENCODE)
    assert [clip.seed for clip in bench.asked] == [0, 1]
    bench.outcome = lambda clip: None
    bench.run(StageName.PREVIEW)
    assert bench.asked == [clips[1]]
    # A stage looks at the ones before it alone: its own old failure, or a later stage's, is no reason to leave out.
    bench.run(StageName.ENCODE)
    assert [clip.seed for clip in bench.asked] == [0, 1]
    bench.run(StageName.PREVIEW)
    assert [clip.seed for clip in bench.asked] == [0, 1]


def test_nothing_is_prepared_when_no_clip_is_left(bench: Bench) -> None:
    put_shard(bench.store)
    bench.outcome = lambda clip: InputError("bad")
    bench.run(StageName.ENHANCE)
    assert bench.prepared == 1
    bench.run(StageName.ENCODE)
    assert bench.prepared == 1
    assert bench.rows(StageName.ENCODE) == ()


def test_stage_that_the_profile_lacks_has_nothing_to_do(bench: Bench) -> None:
    put_shard(bench.store, profile_name="tiny-preview")
    bench.run(StageName.REFINE)
    assert (bench.asked, bench.prepared, bench.rows(StageName.REFINE)) == ([], 0, ())
    bench.run(StageName.DECODE)
    assert len(bench.asked) == 3


@pytest.mark.parametrize("kind", [InfrastructureError, CorruptedArtifactError])
def test_shard_of_which_every_clip_may_succeed_later_is_retried(bench: Bench, kind: type[Magi2Error]) -> None:
    put_shard(bench.store)
    bench.outcome = lambda clip: kind(f"clip {clip.seed}")
    with pytest.raises(kind, match="all 3 clips failed, the first with: clip 0"):
        bench.run()
    assert [row.state for row in bench.rows()] == ["failed"] * 3


@pytest.mark.parametrize(
    "outcome",
    [
        lambda clip: InputError("bad"),
        lambda clip: OutOfMemoryError("too little"),
        lambda clip: InfrastructureError("net") if clip.seed else MediaError("no"),
        lambda clip: InfrastructureError("net") if clip.seed else None,
    ],
)
def test_other_failures_of_clips_do_not_fail_the_shard(bench: Bench, outcome: Outcome) -> None:
    put_shard(bench.store)
    bench.outcome = outcome
    bench.run()
    assert len(bench.rows()) == 3


@pytest.mark.parametrize("kind", [InfrastructureError, CorruptedArtifactError])
def test_shard_is_tried_again_for_one_clip_that_may_pass_and_keeps_what_was_settled(
    bench: Bench, kind: type[Magi2Error]
) -> None:
    clips = put_shard(bench.store, count=4)
    errors = {1: kind("store is full"), 2: InputError("bad"), 3: kind("store is away")}
    bench.outcome = lambda clip: errors.get(clip.seed)
    with pytest.raises(kind, match="2 of 4 clips failed, the first with: store is full"):
        bench.run(StageName.ENHANCE, is_last_try=False)
    assert bench.asked == clips
    assert [(row.clip_id, row.state) for row in bench.rows(StageName.ENHANCE)] == [
        (clips[0].clip_id, "made"),
        (clips[2].clip_id, "failed"),
    ]
    assert failed_clips(bench.store, "batch", 0, [StageName.ENHANCE]) == {clips[2].clip_id}


def test_clip_is_charged_with_a_fault_that_did_not_pass_by_the_last_try(bench: Bench) -> None:
    clips = put_shard(bench.store)
    bench.outcome = lambda clip: InfrastructureError("net") if clip.seed == 1 else None
    with pytest.raises(InfrastructureError):
        bench.run(attempt=3, is_last_try=False)
    bench.run(attempt=4)
    assert failed_clips(bench.store, "batch", 0, [StageName.PREVIEW]) == {clips[1].clip_id}


def test_faults_that_no_try_mends_fail_no_shard_that_has_tries_left(bench: Bench) -> None:
    put_shard(bench.store)
    bench.outcome = lambda clip: OutOfMemoryError("too little")
    bench.run(is_last_try=False)
    assert [row.state for row in bench.rows()] == ["failed"] * 3


def test_force_is_for_the_jobs_stage_alone(bench: Bench) -> None:
    put_shard(bench.store)
    bench.run(force=True)
    assert bench.context.force == {StageName.PREVIEW}
    bench.run()
    assert bench.context.force == frozenset()


def test_shard_that_is_not_there_is_an_input_error(bench: Bench) -> None:
    with pytest.raises(InputError):
        bench.run()


def test_results_that_are_damaged_are_told_from_none(bench: Bench) -> None:
    assert failed_clips(bench.store, "batch", 0, [StageName.ENCODE]) == set()
    for content in (b"{", b"[]", b'{"results": [1]}', b'{"results": [{"clip_id": "a"}]}'):
        bench.store.put_document(results_name("batch", 0, StageName.ENCODE), content)
        with pytest.raises(CorruptedArtifactError, match=r"results/0\.encode\.json"):
            failed_clips(bench.store, "batch", 0, [StageName.ENCODE])


def test_long_errors_are_cut_in_the_results(bench: Bench) -> None:
    clip = Clip("secret " * 100, 1, "tiny", "0" * 64)
    result = StageResult(StageName.ENHANCE, clip, "failed", 1.0, error=InputError(f"bad prompt: {clip.prompt}"))
    write_results(bench.store, "batch", 0, StageName.ENHANCE, 1, [result])
    assert len(bench.rows(StageName.ENHANCE)[0].error or "") == 200


@pytest.mark.slow
def test_worker_without_a_launcher_ends_at_once(tmp_path: Path) -> None:
    asked = StageJob("batch", 0, StageName.MUX, str(tmp_path), is_last_try=False)
    job = asked.write(tmp_path)
    assert job.stat().st_mode & 0o777 == 0o600
    assert StageJob.read(job) == asked
    command = [sys.executable, "-m", "magi2.runtime.worker", "--job", str(job)]
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == ExitCode.INFRASTRUCTURE
    job.write_text("{}")
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == ExitCode.INPUT


def test_real_worker_runs_a_real_stage(
    machine: Machine, tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(tiny_checkpoint))
    monkeypatch.setenv("MAGI2_DEVICE", "cpu")
    store = LocalStore(machine.store)
    clips = put_shard(store, profile_name="tiny-preview", count=2)
    job = StageJob("batch", 0, StageName.ENHANCE, store.url)
    first = machine.launcher().run(job)
    assert [clip.state for clip in first.clips] == ["made", "made"]
    assert [clip.clip_id for clip in first.clips] == [clip.clip_id for clip in clips]
    assert all(clip.peak_memory_bytes > 2**20 for clip in first.clips)
    assert [row.state for row in read_results(store, "batch", 0, StageName.ENHANCE)] == ["made", "made"]
    assert machine.lock_is_free()
