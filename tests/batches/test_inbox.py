"""The inbox: each new file starts one run, whatever dies when."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from magi2.batches.inbox import Claim, Inbox
from magi2.errors import ConfigError, InfrastructureError

ROW = '{"prompt": "a kite"}\n'
LATER = time.time() + 3600


def settled(folder: Path) -> Inbox:
    """An inbox that looks an hour from now, when nothing grows any more."""
    return Inbox(folder, clock=lambda: LATER)


def scan(inbox: Inbox, runs: set[str]) -> None:
    """What the inbox's task does, with a set of run ids for Airflow's database."""
    inbox.claim()
    for claim in inbox.pending():
        runs.add(claim.run_id)
        inbox.started(claim)


def test_each_file_starts_one_run_however_often_it_is_looked_at(tmp_path: Path) -> None:
    for name in ("night.jsonl", "day.csv"):
        (tmp_path / name).write_text("prompt\na kite\n" if name.endswith("csv") else ROW)
    runs: set[str] = set()
    for _ in range(3):
        scan(settled(tmp_path), runs)
    assert sorted(run.rpartition("-")[0].rpartition("-")[0] for run in runs) == ["day", "night"]
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_claimed_file_keeps_its_content_and_its_name_is_the_run_id(tmp_path: Path) -> None:
    (tmp_path / "night.jsonl").write_text(ROW)
    (claim,) = settled(tmp_path).claim()
    assert claim.path == tmp_path / "claimed" / f"{claim.run_id}.jsonl"
    assert claim.path.read_text() == ROW


def test_same_name_again_is_a_new_file(tmp_path: Path) -> None:
    runs: set[str] = set()
    for _ in range(2):
        (tmp_path / "night.jsonl").write_text(ROW)
        scan(settled(tmp_path), runs)
    assert len(runs) == 2


@pytest.mark.parametrize("name", ["night.jsonl.partial", ".night.jsonl", "picture.png", "notes.txt", "night.part"])
def test_partial_hidden_and_other_files_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(ROW)
    (tmp_path / "folder.jsonl").mkdir()
    assert not settled(tmp_path).claim()
    assert (tmp_path / name).exists()


def test_growing_file_is_left_until_it_settles(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(ROW)
    moment = path.stat().st_ctime
    assert not Inbox(tmp_path, clock=lambda: moment + 9).claim()
    assert len(Inbox(tmp_path, clock=lambda: moment + 11).claim()) == 1


def test_old_time_of_writing_does_not_make_a_fresh_copy_settled(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(ROW)
    os.utime(path, (0, 0))
    assert not Inbox(tmp_path).claim()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jsonl", b"", "holds no prompts"),
        ("latin.csv", b"prompt\n\xff\xfe", "unreadable"),
        ("broken.json", b"[{", "line 1 column 3"),
    ],
)
def test_unreadable_file_is_set_aside_with_the_reason(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    runs: set[str] = set()
    scan(settled(tmp_path), runs)
    assert not runs
    texts = sorted((tmp_path / "rejected").iterdir())
    assert [path.suffix for path in texts] in ([Path(name).suffix, ".txt"], [".txt", Path(name).suffix])
    assert reason in next(path for path in texts if path.suffix == ".txt").read_text()
    scan(settled(tmp_path), runs)
    assert not runs


@pytest.mark.parametrize("step", ["rename", "open"])
def test_file_with_which_the_disk_fails_is_passed_over_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    for name in ("bad.jsonl", "good.jsonl"):
        (tmp_path / name).write_text(ROW)
    runs: set[str] = set()
    with monkeypatch.context() as faults:
        if step == "rename":
            rename = Path.rename
            faults.setattr(Path, "rename", lambda path, target: fail_for_bad(path) or rename(path, target))
        else:
            open_ = os.open
            faults.setattr(os, "open", lambda path, *rest, **more: fail_for_bad(path) or open_(path, *rest, **more))
        scan(settled(tmp_path), runs)
    assert [run.partition("-")[0] for run in runs] == ["good"]
    assert "is passed over" in caplog.text and "Input/output error" in caplog.text
    scan(settled(tmp_path), runs)
    assert sorted(run.partition("-")[0] for run in runs) == ["bad", "good"]


def test_disk_that_fails_with_every_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.jsonl").write_text(ROW)
    monkeypatch.setattr(Path, "rename", lambda path, target: fail_for_bad(path))
    with pytest.raises(InfrastructureError, match="Input/output error"):
        settled(tmp_path).claim()


def fail_for_bad(path: object) -> None:
    if Path(str(path)).name.startswith("bad"):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_run_ids_are_such_as_airflow_takes(tmp_path: Path) -> None:
    (tmp_path / "Übersicht für Montag (2) 'x'.jsonl").write_text(ROW)
    (claim,) = settled(tmp_path).claim()
    assert claim.run_id.replace("-", "").isascii()
    assert claim.run_id.replace("-", "").isalnum()
    assert len(claim.run_id) < 100


def test_missing_folder_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        Inbox(tmp_path / "absent").claim()


def test_only_one_of_many_scans_gets_a_file(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.jsonl").write_text(ROW)
    taken: list[Claim] = []
    threads = [threading.Thread(target=lambda: taken.extend(settled(tmp_path).claim())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 20
    assert len(list((tmp_path / "claimed").iterdir())) == 20


CRASHING_SCAN = """
import os, signal, sys, time
from pathlib import Path
from magi2.batches.inbox import Inbox

folder, runs, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inbox = Inbox(folder, clock=lambda: time.time() + 3600)
inbox.claim()
if moment == "claimed":
    os.kill(os.getpid(), signal.SIGKILL)
for claim in inbox.pending():
    (runs / claim.run_id).touch()
    if moment == "asked":
        os.kill(os.getpid(), signal.SIGKILL)
    inbox.started(claim)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["claimed", "asked"])
def test_scan_killed_between_claim_and_mark_neither_loses_nor_doubles_a_run(tmp_path: Path, moment: str) -> None:
    inbox, runs = tmp_path / "inbox", tmp_path / "runs"
    inbox.mkdir()
    runs.mkdir()
    (inbox / "night.jsonl").write_text(ROW)
    for when in (moment, moment, "never", "never"):
        command = [sys.executable, "-c", CRASHING_SCAN, str(inbox), str(runs), when]
        done = subprocess.run(command, timeout=60)
        assert done.returncode == (0 if when == "never" else -9)
    assert len(list(runs.iterdir())) == 1
