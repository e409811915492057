"""The inbox: a folder where people and programs drop batch files, each of which starts one run.

    <inbox>/night.jsonl                        dropped; relative paths in it start at the inbox
    <inbox>/claimed/<run id>.jsonl             taken: its name is the id that its run will have
    <inbox>/claimed/<run id>.started           its run exists
    <inbox>/rejected/<run id>.jsonl            unreadable or a link to elsewhere, with the reason in <run id>.reason.txt

Renaming is the claim, so only one scan gets a file, and it fixes the run id before the run is asked for. Whoever dies
between the two steps leaves a claim without a mark: the next scan asks again for a run of the same id, which exists
or not, and no more than one ever will.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from magi2.batches.batch_file import read_rows
from magi2.errors import ConfigError, InfrastructureError, InputError
from magi2.files import disk_errors, sync_folder
from magi2.inputs.files import InputRoots

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUFFIXES = (".jsonl", ".csv", ".json")
_MAX_STEM = 60


@dataclass(frozen=True)
class Claim:
    """A batch file that was taken, and the id of the run that renders it."""

    run_id: str
    path: Path


class Inbox:
    """A folder of batch files. All methods raise InfrastructureError when the disk fails; for some of the files, the
    others are taken and the log names those.

    A file that was written or renamed less than `settle_s` ago may still be growing. Files are read from `roots`, by
    default from the inbox alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        roots: InputRoots | None = None,
        settle_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._roots = roots or InputRoots((folder,))
        self._settle_s = settle_s
        self._clock = clock
        self._claimed, self._rejected = folder / "claimed", folder / "rejected"

    def claim(self) -> list[Claim]:
        """Take every settled batch file; a file that another scan took meanwhile is not in the list.

        Files that are hidden, growing or of another kind (images, `*.partial`) are left alone.
        Raises: ConfigError when the folder is not there.
        """
        if not self.folder.is_dir():
            raise ConfigError(f"inbox {self.folder} is not a folder", hint="set MAGI2_INBOX to an existing one")
        with disk_errors(self.folder):
            _make_own(self._claimed)
            found = sorted(self.folder.iterdir())
        ready = [path for path, is_ready in _each(found, lambda path: (path, self._is_ready(path))) if is_ready]
        return [claim for claim in _each(ready, self._take) if claim]

    def pending(self) -> Iterator[Claim]:
        """Claims whose run has not been started for certain; unreadable ones are rejected instead."""
        with disk_errors(self._claimed):
            files = sorted(path for path in self._claimed.glob("*") if path.suffix.lower() in SUFFIXES)
        claims = (Claim(path.stem, path) for path in files)
        waiting = [claim.path for claim in claims if not self._mark(claim).exists()]
        for path, is_readable in _each(waiting, lambda path: (path, self._is_readable(Claim(path.stem, path)))):
            if is_readable:
                yield Claim(path.stem, path)

    def started(self, claim: Claim) -> None:
        """Note that the claim's run exists."""
        with disk_errors(self._claimed):
            self._mark(claim).touch()
            sync_folder(self._claimed)

    def _is_ready(self, path: Path) -> bool:
        if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES or not path.is_file():
            return False
        try:
            state = path.stat()
        except FileNotFoundError:
            return False
        # A copy may carry an old time of writing along, but nothing sets back the time of the last change.
        return self._clock() - max(state.st_mtime, state.st_ctime) >= self._settle_s

    def _take(self, path: Path) -> Claim | None:
        run_id = _new_run_id(path.stem)
        target = self._claimed / f"{run_id}{path.suffix.lower()}"
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
        # Should the power fail, the file must not be back in the inbox while its run is under way.
        sync_folder(self._claimed)
        sync_folder(self.folder)
        logger.info("%s is claimed for run %s", path.name, run_id)
        return Claim(run_id, target)

    def _is_readable(self, claim: Claim) -> bool:
        try:
            read_rows(claim.path, self._roots)
        except InputError as error:
            self._reject(claim, str(error))
            return False
        return True

    def _reject(self, claim: Claim, reason: str) -> None:
        logger.error("batch file %s is rejected: %s", claim.path.name, reason)
        with disk_errors(self._rejected):
            _make_own(self._rejected)
            (self._rejected / f"{claim.run_id}.reason.txt").write_text(f"{reason}\n", encoding="utf-8")
            claim.path.rename(self._rejected / claim.path.name)

    def _mark(self, claim: Claim) -> Path:
        return self._claimed / f"{claim.run_id}.started"


def _each(paths: Sequence[Path], work: Callable[[Path], T]) -> Iterator[T]:
    """What `work` makes of each file. One with which the disk fails is logged; if it does with all, that is raised."""
    failed = 0
    for path in paths:
        try:
            with disk_errors(path):
                done = work(path)
        except InfrastructureError as error:
            failed += 1
            if failed == len(paths):
                raise
            logger.error("batch file %s is passed over: %s", path.name, error)
        else:
            yield done


def _make_own(folder: Path) -> None:
    """Make a folder of the inbox. Raises ConfigError when it is a link: files would be moved to wherever it leads."""
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link", hint="remove it: the inbox makes a folder in its place")


def _new_run_id(stem: str) -> str:
    """A run id that no other file gets and that people recognise."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:_MAX_STEM] or "batch"
    return f"{readable}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
