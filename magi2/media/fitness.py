"""Which ffmpeg makes the clips: one that was seen to make one, with the command lines of decode and mux themselves."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from magi2.errors import Magi2Error, MediaError, MissingToolError, in_one_line
from magi2.files import partial_file, private_folder
from magi2.media import deliver as deliver_module
from magi2.media import lossless as lossless_module
from magi2.media.audio import audio_sample_count, write_silence
from magi2.media.deliver import deliver
from magi2.media.delivery import ENCODERS, SAMPLE_RATE_HZ, DeliverySpec, Overlay, delivered_frame_count
from magi2.media.ffmpeg import Ffmpeg, FfmpegProcess, StuckError, find_bundled, find_ffmpeg
from magi2.media.lossless import lossless_stream
from magi2.media.marks.aigc import AIGC_KEY, aigc_entry
from magi2.media.marks.read import require_marks
from magi2.media.probe import ExpectedClip, check_clip, probe

logger = logging.getLogger(__name__)

TRIAL_LIMIT_S = 60.0
"""A second of a picture of this size takes none of these."""
UNFIT_HINT = "use ffmpeg 5.1 or later with libx264, or the one that imageio-ffmpeg brings"
_FPS, _FRAMES = Fraction(25), 25
_NATIVE, _SIZED = (128, 96), (96, 64)
"""The trial's picture, and its size where the delivery sets one."""


def fit_ffmpeg(setting: str | None, *specs: DeliverySpec, verdicts: Path | None = None) -> Ffmpeg:
    """The program to make clips with: `setting` when given, else the system's, else the one imageio-ffmpeg brings.

    It has delivered a second of picture as each of `specs` wants it, with silence and with a sound of no samples. The
    system's is passed over when it cannot; `passed_over` of the result then says what it lacks. What was found of a
    program is remembered in `verdicts`, by default in the user's run folder, until its file or a command line changes.
    Raises: MissingToolError that names what `setting` lacks, or the last one that was tried.
    """
    folder = verdicts or Path(f"/tmp/magi2-{os.getuid()}/ffmpeg")
    try:
        return _require_fit(find_ffmpeg(setting), specs, folder)
    except MissingToolError as error:
        if setting is not None or shutil.which("ffmpeg") is None:
            raise
        return replace(_require_fit(find_bundled(), specs, folder), passed_over=in_one_line(error))


def _require_fit(program: Ffmpeg, specs: tuple[DeliverySpec, ...], folder: Path) -> Ffmpeg:
    for spec in specs:
        program.require(spec.encoder, "ffv1", "aac", known=tuple(ENCODERS.values()))
        if reason := _verdict(program, spec, folder):
            raise MissingToolError(f"{program.path} {program.version} makes no clips: {reason}", hint=UNFIT_HINT)
    return program


def _verdict(program: Ffmpeg, spec: DeliverySpec, folder: Path) -> str | None:
    """Why the program cannot deliver, None when it can; from an earlier trial if there was one."""
    file = folder / f"{_identity(program, spec)}.json"
    try:
        private_folder(private_folder(folder.parent) / folder.name)
        found: str | None = json.loads(file.read_text())["unfit"]
        return found
    except (Magi2Error, OSError, ValueError, KeyError, TypeError) as error:
        logger.debug("nothing is known of %s: %s", program.path, error)
    try:
        reason = _try_out(program, spec)
    except StuckError as error:
        return in_one_line(error)  # perhaps the machine's fault: not remembered
    try:
        with partial_file(file) as partial:
            partial.write_text(json.dumps({"path": program.path, "version": program.version, "unfit": reason}))
    except (Magi2Error, OSError) as error:
        logger.debug("the verdict on %s is not remembered: %s", program.path, error)
    return reason


def _identity(program: Ffmpeg, spec: DeliverySpec) -> str:
    """What a verdict depends on: the program's file, the delivery, and the modules that write the command lines."""
    state = os.stat(program.path)
    lines = [Path(module.__file__ or "").read_text() for module in (deliver_module, lossless_module)]
    facts = (os.path.realpath(program.path), state.st_mtime_ns, state.st_size, repr(spec), *lines)
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _try_out(program: Ffmpeg, spec: DeliverySpec) -> str | None:
    """Why a second of picture could not be delivered, None when it could.

    Raises: StuckError when the program does not end, InfrastructureError when the disk does not take it.
    """
    program = replace(program, limit_s=TRIAL_LIMIT_S)
    spec = replace(spec, size=_SIZED if spec.size else None)
    second = SAMPLE_RATE_HZ + (SAMPLE_RATE_HZ * 2 // _FPS if spec.pad_last_frame else 0)  # the last frame is held, too
    with TemporaryDirectory(prefix="magi2-ffmpeg-") as name:
        folder = Path(name)
        try:
            _write_picture(program, folder / "picture.mkv")
            for samples in (second, 0):
                write_silence(folder / "sound.wav", samples)
                _deliver(program, spec, folder)
        except MediaError as error:
            return in_one_line(error).replace(f"{folder}/", "")
    return None


def _write_picture(program: Ffmpeg, path: Path) -> None:
    width, height = _NATIVE
    stream = lossless_stream(path, width=width, height=height, fps=_FPS)
    with FfmpegProcess(program, stream, purpose="write a picture to try it", feeds=True) as process:
        for frame in range(_FRAMES):
            process.write(memoryview(bytes((7 * frame + place) % 256 for place in range(3 * width)) * height))


def _label(spec: DeliverySpec, path: Path) -> Overlay | None:
    """A grey stamp where the spec wants a label: what it says, and in which font, is not ffmpeg's affair."""
    if spec.label is None:
        return None
    width, height = 16, 8
    path.write_bytes(bytes([128]) * 4 * width * height)
    return Overlay(path, width, height, x=2, y=2, seconds=spec.label.seconds)


def _deliver(program: Ffmpeg, spec: DeliverySpec, folder: Path) -> None:
    video, audio, target = folder / "picture.mkv", folder / "sound.wav", folder / "clip.mp4"
    metadata = {AIGC_KEY: aigc_entry("a trial", "0")}
    label = _label(spec, folder / "label.rgba")
    deliver(video, audio, target, spec, fps=_FPS, frame_count=_FRAMES, metadata=metadata, ffmpeg=program, label=label)
    width, height = spec.size or _NATIVE
    samples = audio_sample_count(audio)
    count = delivered_frame_count(spec, frame_count=_FRAMES, fps=_FPS, sample_count=samples)
    check_clip(probe(target), ExpectedClip(spec.codec, width, height, count, _FPS))
    require_marks(target, metadata[AIGC_KEY])
