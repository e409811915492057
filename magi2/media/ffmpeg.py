"""Finding the ffmpeg program and running it: argument lists only, stderr in a file, its last lines in the error."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import ffmpeg as graph
import imageio_ffmpeg

from magi2.errors import InfrastructureError, Magi2Error, MediaError, MissingToolError
from magi2.files import error_of_a_program

logger = logging.getLogger(__name__)

INSTALL_HINT = "install ffmpeg, or set MAGI2_FFMPEG to the program's path"
CHECK_TIMEOUT_S = 60
RUN_TIMEOUT_S = 1200.0
"""A whole clip takes less by far, and a program that still runs then may run for ever."""
STDERR_TAIL_BYTES = 4096
QUIET = ("-hide_banner", "-nostdin", "-nostats", "-loglevel", "warning", "-y")
ONE_FILTER_THREAD = ("-filter_threads", "1", "-filter_complex_threads", "1")
"""The scaler's slices follow the thread count, and with them the last bit of a pixel: keep it fixed."""


class StuckError(InfrastructureError):
    """The program did not go on for as long as it may, and was ended."""


@dataclass(frozen=True)
class Ffmpeg:
    """A program that was seen to run: where it is, its version line's number, the encoders built into it.

    `passed_over` says what another one lacks in whose place it is used; it is ended when it does not go on for
    `limit_s`, by default `RUN_TIMEOUT_S`.
    """

    path: str
    version: str
    encoders: frozenset[str]
    passed_over: str | None = None
    limit_s: float | None = None

    def require(self, *encoders: str, known: Sequence[str] = ()) -> None:
        """Raise MissingToolError when an encoder is not built in, naming those of `known` that are."""
        missing = [name for name in encoders if name not in self.encoders]
        if missing:
            available = ", ".join(name for name in known if name in self.encoders) or "none of the known ones"
            raise MissingToolError(
                f"{self.path} {self.version} has no encoder {missing[0]}, available: {available}", hint=INSTALL_HINT
            )

    def command(self, stream: Any) -> list[str]:
        """Argument list that runs an ffmpeg-python output node; existing outputs are overwritten."""
        arguments: list[str] = graph.compile(stream, [self.path, *QUIET, *ONE_FILTER_THREAD])
        return arguments


def find_ffmpeg(setting: str | None = None) -> Ffmpeg:
    """The program to use: `setting` when given, else the system's `ffmpeg`, else the one imageio-ffmpeg brings.

    It is asked for version and encoders alone: `fit_ffmpeg` finds one that makes clips. Raises: MissingToolError when
    there is none, or the one chosen does not run.
    """
    system = shutil.which(setting or "ffmpeg")
    if setting is not None and system is None:
        raise MissingToolError(f"ffmpeg: {setting} is not a program", hint=INSTALL_HINT)
    return _asked(system) if system else find_bundled()


def find_bundled() -> Ffmpeg:
    """The program that imageio-ffmpeg brings. Raises: MissingToolError as `find_ffmpeg` does."""
    try:
        return _asked(str(imageio_ffmpeg.get_ffmpeg_exe()))
    except RuntimeError as error:
        raise MissingToolError("ffmpeg: neither on the PATH nor in imageio-ffmpeg", hint=INSTALL_HINT) from error


def _asked(path: str) -> Ffmpeg:
    banner = _ask(path, "-version")
    version = re.match(r"ffmpeg version (\S+)", banner)
    if version is None:
        raise MissingToolError(f"{path} is not ffmpeg: it answers {banner[:80]!r}", hint=INSTALL_HINT)
    listed = _ask(path, "-encoders").partition(" ------")[2]
    encoders = frozenset(line.split()[1] for line in listed.splitlines() if len(line.split()) > 1)
    return Ffmpeg(path=path, version=version[1], encoders=encoders)


def _ask(path: str, option: str) -> str:
    command = [path, "-hide_banner", option] if option != "-version" else [path, option]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        with subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe, process_group=0) as process:
            try:
                answer, complaint = process.communicate(timeout=CHECK_TIMEOUT_S)
            finally:
                kill_group(process)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(f"{path} does not run: {error}", hint=INSTALL_HINT) from error
    if process.returncode != 0:
        said = complaint.decode(errors="replace").strip()[-200:]
        raise MissingToolError(f"{path} {option} exits with {process.returncode}: {said}", hint=INSTALL_HINT)
    return answer.decode(errors="replace")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a program that leads a process group, with all that it started: a child of it may hold our pipes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def file_url(path: Path) -> str:
    """`path` as ffmpeg takes it literally: never as an option, a protocol or standard input."""
    return f"file:{path.absolute()}"


class FfmpegProcess:
    """One running ffmpeg, as a context manager: waits for it at the end of the block, kills it when the block raises.

    It is ended with all that it started, with a StuckError, when it takes no byte or does not come to its end for the
    program's limit. Its stderr goes to an unnamed file, so that a talkative program can never block us; the last lines
    join the error.
    """

    def __init__(self, program: Ffmpeg, stream: Any, *, purpose: str, feeds: bool = False) -> None:
        self._program, self._command = program, program.command(stream)
        self._purpose, self._feeds = purpose, feeds
        self._limit_s = program.limit_s or RUN_TIMEOUT_S
        self._is_late = threading.Event()

    def __enter__(self) -> Self:
        logger.debug("%s: %s", self._purpose, self._command)
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._feeds else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                process_group=0,
            )
        except OSError as error:
            self._stderr.close()
            raise MissingToolError(f"{self._purpose}: {self._program.path} does not start: {error}") from error
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: memoryview) -> None:
        """Feed stdin, waiting while the pipe is full; raises MediaError when ffmpeg has gone."""
        assert self._process.stdin is not None
        try:
            with self._limited():
                self._process.stdin.write(data)
        except BrokenPipeError as error:
            raise self._failure() from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._end()

    def _finish(self) -> None:
        with self._limited():
            if self._process.stdin is not None:
                with suppress(BrokenPipeError):  # the exit status below says why
                    self._process.stdin.close()
            status = self._process.wait()
        if status != 0 or self._is_late.is_set():
            raise self._failure()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Kill the program when the block takes too long, which ends every wait for it."""
        watch = threading.Timer(self._limit_s, self._kill_late)
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _kill_late(self) -> None:
        self._is_late.set()
        kill_group(self._process)

    def _end(self) -> None:
        kill_group(self._process)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._stderr.close()

    def _failure(self) -> Magi2Error:
        with self._limited():
            status = self._process.wait()
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_TAIL_BYTES))
        said = self._stderr.read().decode(errors="replace").strip() or "it said nothing"
        if self._is_late.is_set():
            ended = f"{self._program.path} was ended, since it did not go on for {self._limit_s:g} s"
            return StuckError(f"{self._purpose}: {ended}: {said}", hint="try program and disks by hand")
        ended = f"was killed by signal {-status}" if status < 0 else f"exits with {status}"
        message = f"{self._purpose}: ffmpeg {ended}: {said}"
        return error_of_a_program(message, said, MediaError)


def run_ffmpeg(program: Ffmpeg, stream: Any, *, purpose: str) -> None:
    """Run an ffmpeg-python output node to its end. Raises: MediaError with the last lines of stderr."""
    with FfmpegProcess(program, stream, purpose=purpose):
        pass
