"""Files in the inbox that are not taken are explained once, links are followed, options go with their file."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from magi2.batches import inbox as module
from magi2.batches.inbox import Claim, Inbox
from magi2.inputs.files import InputRoots

ROW = '{"prompt": "a kite"}\n'


class Watched:
    """An inbox that is scanned as its task does, at a time when nothing grows any more."""

    def __init__(self, folder: Path, *, later_s: float = 3600, roots: InputRoots | None = None) -> None:
        self.folder = folder
        self.runs: list[Claim] = []
        self.rejected: list[tuple[str, str]] = []
        self._inbox = Inbox(
            folder,
            roots=roots,
            clock=lambda: time.time() + later_s,
            on_reject=lambda claim, reason: self.rejected.append((claim.run_id, reason)),
        )

    def scan(self, times: int = 1) -> Watched:
        for _ in range(times):
            self._inbox.claim()
            for claim in self._inbox.pending():
                self.runs.append(claim)
                self._inbox.started(claim)
        return self

    def reason(self, name: str) -> str:
        (path,) = self.folder.glob(f"*/{name}.reason.txt")
        return path.read_text()

    @property
    def reasons(self) -> list[str]:
        """The reasons that lie beside what was not taken."""
        return sorted(path.read_text() for path in (self.folder / "rejected").glob("*.reason.txt"))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "inbox").mkdir()
    return Watched(tmp_path / "inbox")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("prompts.txt", "call it .jsonl"),
        ("list.ndjson", "call it .jsonl"),
        ("list.jsonl.gz", "unpack it"),
        ("list.xlsx", "save the sheet as .csv"),
        ("list.docx", "what rows name may stay"),
        ("no suffix", "what rows name may stay"),
        ("settings.yaml", "NAME.options.yaml"),
        ("big.jsonl.partial", "rename it when it is"),
    ],
)
def test_file_that_is_not_taken_is_explained_once_and_stays(
    watched: Watched, caplog: pytest.LogCaptureFixture, name: str, advice: str
) -> None:
    """Somebody waited until morning."""
    (watched.folder / name).write_text(ROW)
    later = Watched(watched.folder, later_s=7200)
    with caplog.at_level(logging.WARNING):
        later.scan(3)
    assert advice in later.reason(name)
    assert [name in record.getMessage() for record in caplog.records] == [True]
    assert (watched.folder / name).exists() and not later.runs


@pytest.mark.parametrize("name", ["kite.png", "kite.JPG", ".hidden.txt", "new.jsonl.partial"])
def test_pictures_hidden_files_and_those_that_come_are_not_spoken_of(watched: Watched, name: str) -> None:
    (watched.folder / name).write_text(ROW)
    (watched.folder / "pictures").mkdir()
    Watched(watched.folder, later_s=600).scan()
    assert not (watched.folder / "not_taken").exists()


def test_what_is_no_file_is_explained(watched: Watched) -> None:
    (watched.folder / "folder.jsonl").mkdir()
    os.mkfifo(watched.folder / "fifo.csv")
    (watched.folder / "gone.json").symlink_to("nowhere.json")
    watched.scan(2)
    assert "it is a folder" in watched.reason("folder.jsonl")
    assert "it is no regular file" in watched.reason("fifo.csv")
    assert "a link that leads nowhere" in watched.reason("gone.json")
    assert not watched.runs


def test_file_that_was_changed_since_is_explained_again(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    path = watched.folder / "prompts.txt"
    path.write_text(ROW)
    watched.scan()
    caplog.clear()
    time.sleep(0.01)
    path.write_text(ROW * 2)
    with caplog.at_level(logging.WARNING):
        watched.scan(2)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("is_relative", [True, False])
def test_link_is_followed_to_a_file_that_stays_where_it_is(tmp_path: Path, is_relative: bool) -> None:
    """A relative link led nowhere once it was claimed."""
    inbox, lists = tmp_path / "inbox", tmp_path / "lists"
    for folder in (inbox, lists):
        folder.mkdir()
    (lists / "real.jsonl").write_text(ROW)
    (inbox / "night.jsonl").symlink_to("../lists/real.jsonl" if is_relative else lists / "real.jsonl")
    watched = Watched(inbox, roots=InputRoots((inbox, lists))).scan(2)
    (run,) = watched.runs
    (lists / "real.jsonl").unlink()
    assert run.path.read_text() == ROW and not run.path.is_symlink()
    assert not list(inbox.glob("*.jsonl"))


def test_link_to_elsewhere_is_refused_and_none_is_left(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (tmp_path / "secret.jsonl").write_text('{"prompt": "hunter2"}')
    (inbox / "night.jsonl").symlink_to("../secret.jsonl")
    watched = Watched(inbox).scan(2)
    assert not watched.runs
    assert "lies outside the folders for inputs" in watched.reasons[0]
    assert not [path for path in inbox.rglob("*") if path.is_symlink()]
    assert not [path for path in inbox.rglob("*") if path.is_file() and "hunter2" in path.read_text()]
    assert (tmp_path / "secret.jsonl").exists()


OPTIONS = "profile: demo\npriority: 7\nbudget: 12.5\nfailure_limit: 3\non_bad_rows: skip\n"


def drop(folder: Path, options: str | bytes | None = OPTIONS, name: str = "night") -> None:
    if options is not None:
        path = folder / f"{name}.options.yaml"
        path.write_bytes(options if isinstance(options, bytes) else options.encode())
    (folder / f"{name}.jsonl").write_text(ROW)


def test_options_go_with_their_file_and_leave_the_inbox(watched: Watched) -> None:
    drop(watched.folder)
    drop(watched.folder, None, "plain")
    watched.scan(3)
    night, plain = sorted(watched.runs, key=lambda run: run.run_id)
    assert night.options == {
        "profile": "demo",
        "priority": 7,
        "budget": 12.5,
        "failure_limit": 3,
        "on_bad_rows": "skip",
    }
    assert plain.options == {}
    assert not [path for path in watched.folder.iterdir() if path.is_file()]
    assert (watched.folder / "claimed" / f"{night.run_id}.options.yaml").read_text() == OPTIONS


def test_options_go_with_all_files_of_their_name(watched: Watched) -> None:
    drop(watched.folder, "priority: 5\n")
    (watched.folder / "night.csv").write_text("prompt\na kite\n")
    watched.scan(2)
    assert [run.options for run in watched.runs] == [{"priority": 5}] * 2
    assert not (watched.folder / "night.options.yaml").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("priorty: 7", "did you mean 'priority'?"),
        ("priority: '7'", "priority"),
        ("priority: true", "priority"),
        ("priority: 1.5", "priority"),
        ("priority: 1001", "priority"),
        ("budget: -1", "budget"),
        ("budget: .inf", "not finite"),
        ("failure_limit: -1", "failure_limit"),
        ("on_bad_rows: ignore", "on_bad_rows"),
        ("profile: ../../etc/passwd", "profile"),
        ("force: [mux]", "unknown key 'force'"),
        ("priority: 1\npriority: 2", "two values for one key"),
        ("- priority", "options are lines of"),
        ("just words", "options are lines of"),
        ("!!python/object/apply:os.system [true]", "unreadable"),
        ("a: &a [1]\nb: [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a]", "aliases"),
        (b"\xff\xfe", "UTF-8"),
        (b"#" * 70_000, "65536"),
    ],
)
def test_options_that_are_wrong_reject_the_file_with_the_reason(
    watched: Watched, options: str | bytes, reason: str
) -> None:
    drop(watched.folder, options)
    watched.scan(2)
    assert not watched.runs
    ((run_id, said),) = watched.rejected
    assert reason in said and reason in watched.reason(run_id)
    assert (watched.folder / "rejected" / f"{run_id}.jsonl").read_text() == ROW
    assert not [path for path in watched.folder.iterdir() if path.is_file()]


def test_empty_options_are_none(watched: Watched) -> None:
    drop(watched.folder, "# nothing yet\n")
    assert watched.scan().runs[0].options == {}


def test_options_that_lead_elsewhere_are_not_copied(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (tmp_path / "secret.yaml").write_text("profile: hunter2")
    drop(inbox, None)
    (inbox / "night.options.yaml").symlink_to("../secret.yaml")
    watched = Watched(inbox).scan(2)
    assert not watched.runs and "lies outside" in watched.rejected[0][1]
    assert not [path for path in inbox.rglob("*") if path.is_file() and "hunter2" in path.read_text()]


def test_file_waits_for_options_that_are_growing(watched: Watched) -> None:
    drop(watched.folder)
    os.utime(watched.folder / "night.options.yaml", (time.time() + 3595, time.time() + 3595))
    assert not watched.scan().runs
    assert Watched(watched.folder, later_s=3700).scan().runs[0].options["priority"] == 7


def test_options_without_a_file_wait_and_that_is_said_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    (watched.folder / "night.options.yaml").write_text(OPTIONS)
    with caplog.at_level(logging.WARNING):
        watched.scan(3)
    assert len(caplog.records) == 1
    assert "it waits for its batch file: night.jsonl or night.csv or night.json" in watched.reason("night.options.yaml")
    (watched.folder / "night.jsonl").write_text(ROW)
    assert watched.scan().runs[0].options["priority"] == 7


def test_options_that_come_late_are_refused_and_not_kept_for_the_next_file(watched: Watched) -> None:
    drop(watched.folder, None)
    watched.scan()
    time.sleep(0.01)
    (watched.folder / "night.options.yaml").write_text(OPTIONS)
    watched.scan()
    assert "came after its file was taken for run night-" in watched.reason("night.options.yaml")
    drop(watched.folder, None)
    assert [run.options for run in watched.scan().runs] == [{}, {}]


def test_scan_that_dies_before_options_are_removed_does_not_leave_them_to_the_next_file(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(watched.folder)
    with monkeypatch.context() as broken:
        for step in ("_let_go", "_explain"):
            broken.setattr(module.Inbox, step, lambda self, options: None)
        watched.scan()
    assert (watched.folder / "night.options.yaml").exists()
    watched.scan()
    assert not (watched.folder / "night.options.yaml").exists()
    drop(watched.folder, None)
    watched.scan()
    assert [run.options for run in watched.runs] == [watched.runs[0].options, {}]
