"""Which ffmpeg is used: old, lame, stuck and lying programs are found out before anything is rendered."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import pytest

from magi2.errors import MissingToolError
from magi2.media import ffmpeg as ffmpeg_module
from magi2.media import fitness
from magi2.media.delivery import DeliverySpec, LabelSpec
from magi2.media.ffmpeg import find_ffmpeg
from magi2.media.fitness import fit_ffmpeg

REAL = imageio_ffmpeg.get_ffmpeg_exe()
FAST = DeliverySpec(preset="ultrafast")

REFUSING = 'for word; do case "$word" in {word}) echo "{says}" >&2; exit 1;; esac; done; exec "{real}" "$@"'
LAME = {
    "an option, as before 5.1": REFUSING.format(word="-fps_mode", says="Unrecognized option 'fps_mode'.", real=REAL),
    "a filter": REFUSING.format(word="*asoftclip*", says="No such filter: 'asoftclip'", real=REAL),
    "a filter of the picture": REFUSING.format(word="*setparams*", says="No such filter: 'setparams'", real=REAL),
    "FFV1 as it is written": REFUSING.format(word="-slicecrc", says="Unrecognized option 'slicecrc'", real=REAL),
    "an encoder": f'"{REAL}" "$@" | grep -v libx264',
    "tags of our own": 'for word; do shift; [ "$word" = +faststart+use_metadata_tags ] && word=+faststart; '
    f'set -- "$@" "$word"; done; exec "{REAL}" "$@"',
    "silence alone": f'wav=; for word; do case "$word" in file:*.wav) wav="${{word#file:}}";; esac; done; '
    f'[ -n "$wav" ] && [ "$(wc -c < "$wav")" -lt 100 ] && {{ echo more samples than frame size >&2; exit 1; }}; '
    f'exec "{REAL}" "$@"',
}
SAYS = {
    "an option, as before 5.1": "Unrecognized option 'fps_mode'",
    "a filter": "No such filter: 'asoftclip'",
    "a filter of the picture": "No such filter: 'setparams'",
    "FFV1 as it is written": "Unrecognized option 'slicecrc'",
    "an encoder": "has no encoder libx264, available: libx265, libsvtav1",
    "tags of our own": "the clip is not marked: no AIGC entries",
    "silence alone": "more samples than frame size",
}


@pytest.fixture
def verdicts(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ffmpeg"


@pytest.fixture
def on_the_path(
    fake_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Path]:
    """A script that is the system's ffmpeg."""

    def install(body: str) -> Path:
        path = tmp_path / "bin" / "ffmpeg"
        path.parent.mkdir()
        Path(fake_program(body)).rename(path)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return install


@pytest.mark.parametrize("lack", LAME)
def test_a_chosen_program_is_refused_with_what_it_lacks(
    lack: str, fake_program: Callable[[str], str], verdicts: Path
) -> None:
    with pytest.raises(MissingToolError) as caught:
        fit_ffmpeg(fake_program(LAME[lack]), FAST, verdicts=verdicts)
    assert SAYS[lack] in str(caught.value) and "fake-ffmpeg" in str(caught.value)


@pytest.mark.parametrize("body", [LAME["an option, as before 5.1"], LAME["an encoder"], "exit 1", "echo hello"])
def test_the_systems_program_is_passed_over_with_what_it_lacks(
    body: str, on_the_path: Callable[[str], Path], verdicts: Path
) -> None:
    system = on_the_path(body)
    program = fit_ffmpeg(None, FAST, verdicts=verdicts)
    assert program.path == REAL
    assert program.passed_over is not None and program.passed_over.startswith(str(system))
    assert "\n" not in program.passed_over


def test_a_fit_system_program_is_used(on_the_path: Callable[[str], Path], verdicts: Path) -> None:
    system = on_the_path(f'exec "{REAL}" "$@"')
    program = fit_ffmpeg(None, FAST, verdicts=verdicts)
    assert (program.path, program.passed_over) == (str(system), None)


@pytest.mark.parametrize(
    "spec",
    [
        DeliverySpec(codec="hevc", preset="ultrafast"),
        DeliverySpec(codec="av1", preset="ultrafast"),
        dataclasses.replace(FAST, size=(1920, 1080), pad_last_frame=True),
        dataclasses.replace(FAST, size=(32, 32), fit="nearest"),
        dataclasses.replace(FAST, size=(32, 32), fit="scale"),
        dataclasses.replace(FAST, label=LabelSpec("AI", seconds=0.5)),
    ],
    ids=["hevc", "av1", "crop and pad", "nearest", "scale", "label"],
)
def test_the_bundled_program_makes_every_kind_of_delivery(spec: DeliverySpec, verdicts: Path) -> None:
    assert fit_ffmpeg(REAL, spec, verdicts=verdicts).path == REAL


def test_a_result_that_is_no_clip_is_not_believed(fake_program: Callable[[str], str], verdicts: Path) -> None:
    lying = (
        f'case "$*" in *.wav*) for name; do :; done; echo no clip > "${{name#file:}}";; *) exec "{REAL}" "$@";; esac'
    )
    with pytest.raises(MissingToolError, match="makes no clips"):
        fit_ffmpeg(fake_program(lying), FAST, verdicts=verdicts)


STUCK = {
    "asked": "sleep 600",
    "fed": f'case "$*" in *rawvideo*) sleep 600;; esac; exec "{REAL}" "$@"',
    "delivering": f'case "$*" in *.wav*) sleep 600;; esac; exec "{REAL}" "$@"',
    "done": f'"{REAL}" "$@"; case "$*" in *.wav*) sleep 600;; esac',
}


@pytest.mark.parametrize("when", STUCK)
def test_a_program_that_never_ends_is_ended_with_all_that_it_started(
    when: str, fake_program: Callable[[str], str], verdicts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = 0.5 if when == "asked" else 3.0
    monkeypatch.setattr(ffmpeg_module, "CHECK_TIMEOUT_S", limit)
    monkeypatch.setattr(fitness, "TRIAL_LIMIT_S", limit)
    asleep = tmp_path / "asleep"
    path = fake_program(STUCK[when].replace("sleep 600", f"sleep 600 & echo $! > {asleep}; wait $!"))
    with pytest.raises(MissingToolError, match=r"timed out after|did not go on for 3 s"):
        fit_ffmpeg(path, FAST, verdicts=verdicts)
    assert _ends(int(asleep.read_text()))
    assert not list(verdicts.glob("*.json"))  # it may have been the machine's fault


def _ends(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet buried; it was sent SIGKILL."""
    for _ in range(3000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_verdict_holds_until_file_or_delivery_change(
    fake_program: Callable[[str], str], verdicts: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    body = f'case "$*" in *.wav*) echo . >> {calls};; esac; exec "{REAL}" "$@"'
    path = fake_program(body)

    def deliveries(spec: DeliverySpec = FAST) -> int:
        fit_ffmpeg(path, spec, verdicts=verdicts)
        return len(calls.read_text().split())

    assert [deliveries(), deliveries()] == [2, 2]
    assert [deliveries(dataclasses.replace(FAST, crf=20)), deliveries()] == [4, 4]
    fake_program(body + " #")
    assert [deliveries(), deliveries()] == [6, 6]


def test_an_unfit_verdict_is_remembered_too(fake_program: Callable[[str], str], verdicts: Path) -> None:
    path = fake_program(LAME["an option, as before 5.1"])
    for _ in range(2):
        with pytest.raises(MissingToolError, match="fps_mode"):
            fit_ffmpeg(path, FAST, verdicts=verdicts)
    (file,) = verdicts.glob("*.json")
    file.write_text(json.dumps({"unfit": "as remembered"}))
    with pytest.raises(MissingToolError, match="as remembered"):
        fit_ffmpeg(path, FAST, verdicts=verdicts)


@pytest.mark.parametrize("damage", ["", "[]"])
def test_a_damaged_verdict_is_found_anew(damage: str, verdicts: Path) -> None:
    fit_ffmpeg(REAL, FAST, verdicts=verdicts)
    (file,) = verdicts.glob("*.json")
    file.write_text(damage)
    assert fit_ffmpeg(REAL, FAST, verdicts=verdicts).path == REAL
    assert json.loads(file.read_text())["unfit"] is None


def test_verdicts_of_somebody_else_are_not_believed(verdicts: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    verdicts.parent.mkdir()
    verdicts.symlink_to(elsewhere)
    assert fit_ffmpeg(REAL, FAST, verdicts=verdicts).path == REAL


@pytest.mark.programs("ffmpeg")
def test_the_systems_own_program_is_used_from_5_1_on(verdicts: Path) -> None:
    version = re.match(r"(\d+)\.(\d+)", find_ffmpeg("ffmpeg").version)
    is_old = version is not None and (int(version[1]), int(version[2])) < (5, 1)
    assert (fit_ffmpeg(None, DeliverySpec(), verdicts=verdicts).passed_over is not None) == is_old


@pytest.mark.deployment
def test_version_4_2_is_passed_over_and_refused_where_it_is_chosen(
    tmp_path: Path, verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real program, as an older imageio-ffmpeg brings it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "imageio-ffmpeg==0.5.1"]
    subprocess.run([*pip, "--dest", str(tmp_path)], check=True, timeout=600)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if "/binaries/ffmpeg" in name)
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir()
        program.write_bytes(wheel.read(name))
    program.chmod(0o755)
    with pytest.raises(MissingToolError, match=r"4\.2\.2-static makes no clips: .* Unrecognized option 'fps_mode'"):
        fit_ffmpeg(str(program), FAST, verdicts=verdicts)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert fit_ffmpeg(None, FAST, verdicts=verdicts).path == REAL
