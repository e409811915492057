"""The inbox: a folder where people and programs drop batch files, each of which starts one run.

    <inbox>/night.jsonl                        dropped; relative paths in it start at the inbox
    <inbox>/night.options.yaml                 options of its run, if any; dropped before it or with it
    <inbox>/claimed/<run id>.jsonl             taken: its name is the id that its run will have
    <inbox>/claimed/<run id>.options.yaml      its options
    <inbox>/claimed/<run id>.started           its run exists
    <inbox>/rejected/<run id>.jsonl            cannot be read, with the reason in <run id>.reason.txt
    <inbox>/not_taken/prompts.txt.reason.txt   why prompts.txt, which stays where it is, starts no run

Renaming is the claim, so only one scan gets a file, and it fixes the run id before the run is asked for. Whoever dies
between the two steps leaves a claim without a mark: the next scan asks again for a run of the same id, which exists
or not, and no more than one ever will. Options are there before their file is claimed, and leave the inbox after.
A link is replaced by what it leads to before it is claimed, as far as that lies in the folders for inputs.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from magi2.batches.batch_file import read_rows
from magi2.batches.file_options import OPTIONS_SUFFIX, read_options
from magi2.batches.inbox_files import is_batch_name, why_not_taken
from magi2.batches.rows import SUFFIXES
from magi2.errors import ConfigError, InfrastructureError, InputError
from magi2.files import disk_errors, partial_file, sync_folder, write_durably
from magi2.inputs.files import InputRoots
from magi2.inputs.limits import MAX_BATCH_BYTES, MAX_YAML_CHARS
from magi2.inputs.refusals import UnreadableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LATE_S = 600.0
"""Options that come within this time after their file was taken were meant for that one."""
_MAX_STEM = 60
_REASON = ".reason.txt"


@dataclass(frozen=True)
class Claim:
    """A batch file that was taken, the id of the run that renders it, and the parameters that it sets for it."""

    run_id: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)


class Inbox:
    """A folder of batch files. All methods raise InfrastructureError when the disk fails; for some of the files, the
    others are taken and the log names those.

    A file that was written or renamed less than `settle_s` ago may still be growing. Files are read from `roots`, by
    default from the inbox alone. `on_reject` hears of each batch file that is rejected, and why.
    """

    def __init__(
        self,
        folder: Path,
        *,
        roots: InputRoots | None = None,
        settle_s: float = 10.0,
        clock: Callable[[], float] = time.time,
        on_reject: Callable[[Claim, str], None] = lambda claim, reason: None,
    ) -> None:
        self.folder = folder
        self._roots = roots or InputRoots((folder,))
        self._settle_s = settle_s
        self._clock = clock
        self._on_reject = on_reject
        self._claimed, self._rejected, self._not_taken = (
            folder / name for name in ("claimed", "rejected", "not_taken")
        )

    def claim(self) -> list[Claim]:
        """Take every settled batch file; a file that another scan took meanwhile is not in the list.

        What is hidden or growing is left alone; of other files the log and `not_taken/` say, once, why they are not
        taken. Raises: ConfigError when the folder is not there.
        """
        if not self.folder.is_dir():
            raise ConfigError(f"inbox {self.folder} is not a folder", hint="set MAGI2_INBOX to an existing one")
        with disk_errors(self.folder):
            _make_own(self._claimed)
            found = sorted(self.folder.iterdir())
        ready = [path for path, is_ready in _each(found, lambda path: (path, self._is_ready(path))) if is_ready]
        claims = [claim for claim in _each(ready, self._take) if claim]
        for _ in _each(sorted({options_of(path) for path in ready}), self._let_go):
            pass
        for _ in _each([path for path in found if path not in ready], self._explain):
            pass
        return claims

    def pending(self) -> Iterator[Claim]:
        """Claims whose run has not been started for certain; unreadable ones are rejected instead."""
        with disk_errors(self._claimed):
            files = sorted(path for path in self._claimed.glob("*") if path.suffix.lower() in SUFFIXES)
        claims = (Claim(path.stem, path) for path in files)
        waiting = [claim.path for claim in claims if not self._mark(claim).exists()]
        for claim in _each(waiting, lambda path: self._read(Claim(path.stem, path))):
            if claim:
                yield claim

    def started(self, claim: Claim) -> None:
        """Note that the claim's run exists."""
        with disk_errors(self._claimed):
            self._mark(claim).touch()
            sync_folder(self._claimed)

    def _is_ready(self, path: Path) -> bool:
        if not is_batch_name(path) or not path.is_file():
            return False
        return self._is_settled(path) and self._is_settled(options_of(path))

    def _is_settled(self, path: Path) -> bool:
        """Whether a file has not changed for a while, as what is not there never does."""
        return (age := self._age(path)) is None or age >= self._settle_s

    def _age(self, path: Path) -> float | None:
        """Seconds since the last change; None when there is nothing."""
        try:
            state = path.lstat()
        except FileNotFoundError:
            return None
        # A copy may carry an old time of writing along, but nothing sets back the time of the last change.
        return self._clock() - max(state.st_mtime, state.st_ctime)

    def _take(self, path: Path) -> Claim | None:
        run_id, reason = _new_run_id(path.stem), None
        target = self._claimed / f"{run_id}{path.suffix.lower()}"
        try:
            self._follow(path)
            self._copy_options(options_of(path), options_of(target))
        except UnreadableError as error:
            reason = str(error)
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
        # Should the power fail, the file must not be back in the inbox while its run is under way.
        sync_folder(self._claimed)
        sync_folder(self.folder)
        claim = Claim(run_id, target)
        if reason:
            self._reject(claim, reason)
            return None
        logger.info("%s is claimed for run %s", path.name, run_id)
        return claim

    def _follow(self, path: Path) -> None:
        """Put what a link leads to in its place. Raises: UnreadableError when that lies elsewhere."""
        if path.is_symlink():
            content = self._roots.read(path, MAX_BATCH_BYTES)
            with partial_file(path) as partial:
                write_durably(partial, content)

    def _copy_options(self, source: Path, target: Path) -> None:
        """Raises: UnreadableError when there are options that are not read."""
        if not os.path.lexists(source):
            return
        write_durably(target, self._roots.read(source, MAX_YAML_CHARS))
        state = source.stat()
        os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))

    def _let_go(self, options: Path) -> None:
        """Remove options that were copied for all files of their name."""
        if not any(map(os.path.lexists, _files_of(options))):
            options.unlink(missing_ok=True)

    def _read(self, claim: Claim) -> Claim | None:
        """The claim with its options; None for one that cannot be read, which is rejected."""
        try:
            read_rows(claim.path, self._roots)
            options = options_of(claim.path)
            if not options.exists():
                return claim
            content = InputRoots((self._claimed,)).read(options, MAX_YAML_CHARS)
            return replace(claim, options=read_options(content, options.name))
        except InputError as error:
            self._reject(claim, str(error))
            return None

    def _reject(self, claim: Claim, reason: str) -> None:
        logger.error("batch file %s is rejected: %s", claim.path.name, reason)
        with disk_errors(self._rejected):
            self._write_reason(claim.run_id, reason)
            for path in (options_of(claim.path), claim.path):
                if path.is_symlink():
                    path.unlink()  # it has no content to keep, and would lead nowhere from there
                elif path.exists():
                    path.rename(self._rejected / path.name)
        self._on_reject(claim, reason)

    def _explain(self, path: Path) -> None:
        """Say once, and again after each change, why a settled file is not taken."""
        age = self._age(path)
        if age is None or age < self._settle_s:
            return
        if path.name.endswith(OPTIONS_SUFFIX) and self._explain_options(path):
            return
        note = self._not_taken / f"{path.name}{_REASON}"
        told = self._age(note)
        if (reason := why_not_taken(path, age)) and (told is None or told > age):
            logger.warning("%s stays in the inbox: %s", path.name, reason)
            _make_own(self._not_taken)
            note.write_text(f"{reason}\n", encoding="utf-8")

    def _explain_options(self, path: Path) -> bool:
        """See to options that are of no more use: they were copied, or came after their file was taken."""
        state = path.lstat()
        for claimed in self._claims_of(path.name.removesuffix(OPTIONS_SUFFIX)):
            if claimed.name.endswith(OPTIONS_SUFFIX):
                if claimed.stat().st_mtime_ns == state.st_mtime_ns:
                    path.unlink()
                    return True
            elif 0 <= state.st_ctime - claimed.stat().st_ctime < _LATE_S:
                reason = (
                    f"it came after its file was taken for run {claimed.stem}: change that run's options in Airflow"
                )
                logger.error("options %s are rejected: %s", path.name, reason)
                self._write_reason(path.name, reason)
                path.replace(self._rejected / path.name)
                return True
        return False

    def _claims_of(self, stem: str) -> list[Path]:
        """What was claimed of files of this name, and their options."""
        kinds = "|".join(map(re.escape, (*SUFFIXES, OPTIONS_SUFFIX)))
        pattern = re.compile(rf"{re.escape(_readable(stem))}-\d{{8}}T\d{{6}}-[0-9a-f]{{8}}(?:{kinds})")
        return sorted(path for path in self._claimed.iterdir() if pattern.fullmatch(path.name))

    def _write_reason(self, name: str, reason: str) -> None:
        _make_own(self._rejected)
        (self._rejected / f"{name}{_REASON}").write_text(f"{reason}\n", encoding="utf-8")

    def _mark(self, claim: Claim) -> Path:
        return self._claimed / f"{claim.run_id}.started"


def options_of(path: Path) -> Path:
    """Where the options of a batch file are, if it has any."""
    return path.with_name(path.stem + OPTIONS_SUFFIX)


def _files_of(options: Path) -> list[Path]:
    stem = options.name.removesuffix(OPTIONS_SUFFIX)
    return [options.with_name(stem + suffix) for suffix in SUFFIXES]


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
    return f"{_readable(stem)}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def _readable(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:_MAX_STEM] or "batch"
