"""One job in a process group: what is heard, what comes back, and which error stands for which end."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magi2 import errors
from magi2.errors import CancelledError, InfrastructureError, InputError, Magi2Error
from magi2.runtime import launcher as launcher_module
from magi2.runtime import log_file
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, StageStarted, Step
from magi2.runtime.exit_codes import ExitCode
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.runtime.watch import Limits
from magi2.types import StageName
from tests.runtime.runtime_helpers import QUICK, WORKER, Machine, wait_until

PROMPT = "".join(f"a very long and private prompt, part {number}. " for number in range(400))


def test_progress_is_forwarded_and_the_result_says_what_became_of_clips(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.act("succeed")
    heard: list[Event] = []
    with caplog.at_level(logging.INFO):
        result = machine.launcher().run(machine.job(ranks=1), on_event=heard.append)
    kinds = [type(event) for event in heard]
    assert kinds == [StageStarted, ModelsLoaded, Step, ClipFinished, Step, ClipFinished]
    assert (result.count("made"), result.count("failed"), result.count("reused")) == (1, 1, 0)
    made, failed = result.clips
    assert (made.key, made.flags, made.peak_memory_bytes, made.accelerator_seconds) == ("k", ("flag",), 12345, 2.0)
    assert (failed.error_code, failed.error) == ("image", "no picture")
    assert result.models_loaded_s == 0.5
    assert result.log.parent == machine.folder / "logs"
    lines = [record.getMessage() for record in caplog.records]
    assert any("2 of 2 clips (1 made, 0 reused, 1 failed)" in line for line in lines)
    assert not any("step" in line for line in lines)  # the first progress line is due after 10 s
    assert machine.lock_is_free()


@pytest.mark.parametrize(
    "kind",
    ["ConfigError", "InfrastructureError", "OutOfMemoryError", "MediaError"],
)
def test_error_of_the_worker_keeps_its_class_and_message(machine: Machine, kind: str) -> None:
    machine.act("fail", kind=kind, message="the disk of node 7 is full")
    with pytest.raises(Magi2Error, match="the disk of node 7 is full") as caught:
        machine.launcher().run(machine.job())
    assert type(caught.value) is getattr(errors, kind)
    assert "batch batch shard 0 stage preview" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ExitCode.INPUT, "InputError"),
        (ExitCode.CORRUPTED_ARTIFACT, "CorruptedArtifactError"),
        (ExitCode.CANCELLED, "CancelledError"),
        (1, "Magi2Error"),
        (0, "InfrastructureError"),
    ],
)
def test_exit_code_alone_says_the_class_and_stderr_is_quoted(machine: Machine, code: int, kind: str) -> None:
    machine.act("leave", code=code)
    with pytest.raises(Magi2Error, match="last words") as caught:
        machine.launcher().run(machine.job())
    assert type(caught.value) is getattr(errors, kind)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_death_by_a_foreign_signal_is_retried_and_says_where(machine: Machine, number: int) -> None:
    machine.act("die", number=number)
    with pytest.raises(InfrastructureError, match=rf"step 3/10: ended by {signal.Signals(number).name}") as caught:
        machine.launcher().run(machine.job())
    assert caught.value.retryable


def test_unforeseen_error_shows_its_traceback_but_no_prompt(machine: Machine) -> None:
    machine.act("fail", kind="none", message=PROMPT)
    with pytest.raises(Magi2Error) as caught:
        machine.launcher().run(machine.job())
    message = str(caught.value)
    assert "Traceback" in message
    assert 'stub_worker.py", line' in message
    assert _quoted(message) <= 200
    assert len(message) < 5000


@pytest.mark.parametrize("kind", ["InputError", "EnhancementError"])
def test_error_that_may_quote_a_prompt_is_cut(machine: Machine, kind: str) -> None:
    machine.act("fail", kind=kind, message=PROMPT)
    with pytest.raises(Magi2Error) as caught:
        machine.launcher().run(machine.job())
    assert 50 < _quoted(str(caught.value)) <= 200


def _quoted(message: str) -> int:
    """Characters of the prompt in a message: all its stretches of 12 characters that the prompt has, joined."""
    covered = set()
    for start in range(len(message) - 11):
        if message[start : start + 12] in PROMPT:
            covered.update(range(start, start + 12))
    return len(covered)


def test_output_without_end_neither_blocks_the_child_nor_fills_the_disk(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "_LOG_CHECK_S", 0.1)
    monkeypatch.setattr(launcher_module, "bound_log", lambda path: log_file.bound_log(path, limit=4 * 2**20))
    machine.act("flood", megabytes=64)
    result = machine.launcher().run(machine.job())
    assert result.count("made") == 1
    assert result.log.stat().st_size < 48 * 2**20


def test_garbage_among_the_events_is_skipped(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.act("talk_garbage")
    result = machine.launcher().run(machine.job())
    assert len(result.clips) == 2
    assert sum("skipped" in record.getMessage() for record in caplog.records) == 4  # three, and that it goes on
    assert "unknown kind 'unheard_of'" in caplog.text


def test_process_that_is_done_but_does_not_exit_is_ended_and_its_work_counts(machine: Machine) -> None:
    machine.act("stay")
    result = machine.launcher(Limits(exit=0.5, grace=0.5)).run(machine.job())
    assert result.count("made") == 1


def test_process_left_by_a_worker_is_ended_with_it(machine: Machine) -> None:
    machine.act("start_another_and_end")
    assert machine.launcher().run(machine.job()).count("made") == 1
    assert machine.processes() == {}


def test_hang_is_ended_naming_the_rank_and_step_with_stacks_of_all_threads(machine: Machine) -> None:
    machine.act("wait")
    said = r"rank 0 \(clip [0-9a-f]{12} step 3/10\) hangs, no progress for 0\.7 s"
    with pytest.raises(InfrastructureError, match=said) as caught:
        machine.launcher(Limits(step=0.7, grace=1, stacks=1)).run(machine.job())
    assert 'stub_worker.py", line' in str(caught.value)
    assert "in wait" in str(caught.value)


def test_frozen_process_is_ended(machine: Machine) -> None:
    machine.act("freeze")
    with pytest.raises(InfrastructureError, match=r"rank 0 \(clip .* step 3/10\) is frozen"):
        machine.launcher(Limits(heartbeat=2, grace=0.3, stacks=0.1)).run(machine.job())


def test_worker_that_never_speaks_is_ended(machine: Machine) -> None:
    with pytest.raises(InfrastructureError, match=r"rank 0 .* did not start within 0.5 s"):
        machine.launcher(Limits(start=0.5, grace=0.3, stacks=0.1)).run(machine.job(module="tests.runtime.stub_silent"))


def test_slow_listener_does_not_make_the_ranks_look_frozen(machine: Machine) -> None:
    machine.act("flood", megabytes=16)

    def listen(event: Event) -> None:
        time.sleep(3.0 if isinstance(event, StageStarted) else 0.0)

    result = machine.launcher(Limits(heartbeat=2)).run(machine.job(), on_event=listen)
    assert len(result.clips) == 2


def test_error_of_the_listener_ends_the_group(machine: Machine) -> None:
    machine.act("wait")

    def complain(event: Event) -> None:
        raise LookupError("no such batch in the catalog")

    with pytest.raises(LookupError):
        machine.launcher().run(machine.job(), on_event=complain)
    assert machine.processes() == {}


@pytest.mark.parametrize("action", ["wait", "ignore_sigterm", "start_others", "freeze"])
def test_stop_ends_the_whole_group(machine: Machine, action: str) -> None:
    machine.act(action)
    launcher = machine.launcher()
    with pytest.raises(CancelledError, match="stopped"):
        launcher.run(machine.job(), on_event=lambda event: launcher.stop())
    assert machine.processes() == {}
    assert machine.lock_is_free()


def test_should_stop_is_asked_while_nothing_happens(machine: Machine) -> None:
    machine.act("wait")
    deadline = time.monotonic() + 1.0
    with pytest.raises(CancelledError):
        machine.launcher().run(machine.job(), should_stop=lambda: time.monotonic() > deadline)


@pytest.mark.parametrize(("device", "held"), [("cuda", "accelerators"), ("cpu", "the same work")])
def test_late_attempt_and_its_retry_stay_apart_on_every_device(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, device: str, held: str
) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", device)
    with running(machine, machine.job(attempt=1)) as first:
        with pytest.raises(
            InfrastructureError, match=r"still locked by group \d+, launcher \d+, since 20.* stage preview"
        ):
            machine.launcher(Limits(lock=0.5)).run(machine.job(attempt=2))
        machine.act("succeed")
        # A stage that needs no accelerator does not wait; one that does goes on when they are free.
        assert machine.launcher(Limits(lock=0)).run(machine.job(StageName.MUX)).count("made") == 1
        with caplog.at_level(logging.INFO):
            stop_once_said(first, caplog, f"waits for {held} held by group")
            assert machine.launcher().run(machine.job(attempt=2)).count("made") == 1
    assert f"waits for {held} held by group" in caplog.text


def test_late_attempt_at_a_stage_without_accelerator_and_its_retry_stay_apart(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", "cuda")
    with (
        running(machine, machine.job(StageName.MUX, attempt=1)),
        pytest.raises(InfrastructureError, match=r"still locked by group .* stage mux"),
    ):
        machine.launcher(Limits(lock=0)).run(machine.job(StageName.MUX, attempt=2))


@pytest.mark.parametrize(
    ("device", "other", "waits"),
    [
        ("cpu", {"batch_id": "another"}, False),
        ("cpu", {"shard": 1}, False),
        ("cpu", {"stage": StageName.DECODE}, False),
        ("cpu", {"store": "elsewhere"}, False),
        ("cpu", {"store": "store/../store"}, True),
        ("cpu", {"store": "link"}, True),
        ("cuda", {"batch_id": "another"}, True),
        ("cuda", {"store": "elsewhere"}, True),
        ("cuda:0", {"shard": 1}, True),
    ],
)
def test_jobs_exclude_each_other_by_their_work_on_the_cpu_and_by_the_host_on_accelerators(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str, other: dict[str, Any], waits: bool
) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", device)
    machine.store.mkdir()
    (machine.store.parent / "link").symlink_to(machine.store)
    if "store" in other:
        other = {"store": str(machine.store.parent / other["store"])}
    with running(machine, machine.job()):
        machine.act("succeed")
        job = replace(machine.job(), **other)
        if waits:
            with pytest.raises(InfrastructureError, match="still locked by group"):
                machine.launcher(Limits(lock=0)).run(job)
        else:
            assert machine.launcher(Limits(lock=0)).run(job).count("made") == 1


@pytest.mark.parametrize(("is_cpu_build", "waits"), [(True, False), (False, True)])
def test_without_a_device_the_build_of_torch_decides_what_is_locked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_cpu_build: bool, waits: bool
) -> None:
    monkeypatch.delenv("MAGI2_DEVICE", raising=False)
    monkeypatch.setattr("magi2.stages.layouts.is_cpu_only", lambda: is_cpu_build)
    machine.act("succeed")
    with launcher_module.accelerator_lock("all", timeout_s=0, folder=machine.folder):
        if waits:
            with pytest.raises(InfrastructureError, match=r"accelerators\.lock: still locked"):
                machine.launcher(Limits(lock=0)).run(machine.job())
        else:
            assert machine.launcher(Limits(lock=0)).run(machine.job()).count("made") == 1


def test_no_lock_file_of_a_job_on_the_cpu_is_left(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", "cpu")
    machine.act("succeed")
    for shard in range(3):
        machine.launcher().run(replace(machine.job(), shard=shard))
    assert not list(machine.folder.glob("*.lock"))


@contextmanager
def running(machine: Machine, job: StageJob) -> Iterator[Launcher]:
    """A launcher whose job is at work until the context ends or somebody stops it."""
    machine.act("wait")
    launcher, heard = machine.launcher(), list[Event]()

    def run() -> None:
        with suppress(CancelledError):
            launcher.run(job, on_event=heard.append)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: heard)
        yield launcher
    finally:
        launcher.stop()
        thread.join()


def stop_once_said(launcher: Launcher, caplog: pytest.LogCaptureFixture, line: str) -> None:
    def stop() -> None:
        wait_until(lambda: line in caplog.text)
        launcher.stop()

    threading.Thread(target=stop).start()


def test_waiting_for_the_accelerators_can_be_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", "cuda")
    with launcher_module.accelerator_lock("all", timeout_s=0, folder=machine.folder):
        launcher = machine.launcher(QUICK)
        threading.Timer(0.3, launcher.stop).start()
        with pytest.raises(CancelledError):
            launcher.run(machine.job())


def test_devices_are_the_only_ones_the_worker_sees(machine: Machine) -> None:
    job = machine.job(devices=(3, 1))
    environment = launcher_module._environment(job)
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["MUSA_VISIBLE_DEVICES"] == "1,3"


def test_more_ranks_are_forked_from_one_process(machine: Machine) -> None:
    command = launcher_module.command(machine.job(ranks=8), Path("/job"))
    expected = f"-m magi2.runtime.ranks 8 {WORKER} --job /job/job.json"
    assert " ".join(command[1:]) == expected


@pytest.mark.parametrize(("field", "value"), [("batch_id", "../x"), ("batch_id", ""), ("shard", -1), ("attempt", 0)])
def test_job_that_is_none_is_refused(machine: Machine, field: str, value: object) -> None:
    values = {"batch_id": "b", "shard": 0, "stage": StageName.MUX, "store": "s", field: value}
    with pytest.raises(InputError):
        launcher_module.StageJob(**values)  # type: ignore[arg-type]


@pytest.mark.slow
def test_importing_the_launcher_costs_no_torch() -> None:
    code = "import magi2.runtime.launcher, sys; sys.exit(bool({'torch', 'airflow'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
