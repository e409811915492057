"""Every expected error is one line on stderr and an exit code, before any weight is loaded and any file is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magi2.media.ffmpeg import find_ffmpeg
from tests.cli.cli_said import Magi2, Said


def check_refused(said: Said, code: int, message: str, folder: Path) -> None:
    """One line that says it, the exit code, and nothing rendered."""
    assert said.code == code, said
    assert len(said.error_lines) == 1 and said.error_lines[0].startswith("error: "), said.err
    assert message in said.err
    assert said.out == ""
    assert not (folder / "store" / "artifacts").exists()


INPUT_ERRORS = {
    "unknown profile": (["-p", "x", "--profile", "1080"], "unknown profile '1080' (did you mean '1080p'?)"),
    "unknown key": (["-p", "x", "--set", "refiner.step=8"], "unknown key 'refiner.step' (did you mean 'steps'?)"),
    "bad value": (["-p", "x", "--set", "preview.steps=many"], "preview.steps: Input should be a valid integer"),
    "odd size": (["-p", "x", "--set", "preview.width=100"], "must be a multiple of 16, the nearest is 96"),
    "no key": (["-p", "x", "--set", "fast"], "override 'fast' is not of the form key=value"),
    "broken YAML": (["-p", "x", "--set", "preview.steps=["], "the value is not YAML"),
    "empty prompt": (["-p", "  "], "the prompt is empty"),
    "no prompt": ([], "give either --prompt TEXT or --prompts FILE"),
    "two prompts": (["-p", "x", "--prompts", "batch.jsonl"], "give either --prompt TEXT or --prompts FILE"),
    "seed for a batch": (["--prompts", "batch.jsonl", "--seed", "1"], "a batch file has columns for them"),
    "absent batch": (["--prompts", "absent.jsonl"], "absent.jsonl: unreadable"),
    "negative seed": (["-p", "x", "--seed", "-1"], "seed is -1, must be an integer from 0 to"),
    "large seed": (["-p", "x", "--seed", str(2**53)], f"seed is {2**53}, must be an integer from 0 to"),
    "figure without image": (["-p", "<Figure 1> waves"], "names <Figure 1> but has 0 image(s)"),
    "absent image": (["-p", "x", "--image", "absent.png"], "absent.png: no such image"),
    "no image": (["-p", "x", "--image", "batch.jsonl"], "batch.jsonl: not a readable image"),
    "long image": (["-p", "x", "--image", "long.png"], "long.png: image of 300x40 pixels is too elongated"),
    "output is a file": (["-p", "x", "--out", "batch.jsonl"], "--out batch.jsonl: File exists"),
    "endpoint missing": (["-p", "x", "--set", "enhancement.mode=llm"], "enhancement mode llm needs an endpoint"),
    "heads do not divide": (["-p", "x", "--layout", "sp3"], "heads do not divide by cp 3 (nearest that work: sp2"),
    "no layout": (["-p", "x", "--layout", "eight"], "layout 'eight': 'eight' is not understood"),
    "no accelerator": (["-p", "x", "--set", "noise_device=accelerator"], "noise_device is accelerator"),
}


@pytest.fixture
def folder(tmp_path: Path, golden: Path) -> Path:
    shutil.copy(golden / "output" / "images" / "pano_300x40.png", tmp_path / "long.png")
    (tmp_path / "batch.jsonl").write_text('{"prompt": "x"}\n')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("case", INPUT_ERRORS)
def test_bad_input_is_one_line_and_exit_code_two(
    case: str, magi2: Magi2, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = INPUT_ERRORS[case]
    monkeypatch.setenv("MAGI2_DEVICE", "cpu")
    check_refused(magi2("render", "--profile", "tiny", *arguments), 2, message, folder)


def test_bad_rows_are_all_listed_and_nothing_starts(magi2: Magi2, folder: Path) -> None:
    (folder / "bad.csv").write_text("prompt,seed\n,1\ngood,2\nx,-5\n")
    said = magi2("render", "--profile", "tiny", "--prompts", "bad.csv")
    assert said.code == 2
    assert said.error_lines[0] == "error: 2 bad rows, nothing was started:"
    assert [line.strip()[:6] for line in said.error_lines[1:]] == ["line 2", "line 4"]
    assert not (folder / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAGI2_CKPT_ROOT", "", "MAGI2_CKPT_ROOT is not set"),
        ("MAGI2_CKPT_ROOT", "/nowhere", "MAGI2_CKPT_ROOT=/nowhere is not a folder"),
        ("MAGI2_CKPT_ROOT", ".", "text_encoder/config.json is missing"),
        ("MAGI2_CKPT", "x", "unknown variable MAGI2_CKPT (did you mean 'MAGI2_CKPT_ROOT'?)"),
        ("MAGI2_DEVICE", "tpu", "device is 'tpu', must be one of cuda, musa, cpu"),
        ("MAGI2_DEVICE", "cpu:first", "MAGI2_DEVICE ends in 'first'"),
        ("MAGI2_STORE", "ftp://x/y", "no store of kind 'ftp'"),
        ("MAGI2_DETERMINISTIC", "maybe", "MAGI2_DETERMINISTIC='maybe' is neither 0 nor 1"),
    ],
)
def test_a_wrong_environment_is_one_line_and_exit_code_two(
    name: str, value: str, message: str, magi2: Magi2, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    check_refused(magi2("render", "-p", "x", "--profile", "tiny"), 2, message, folder)


@pytest.mark.slow
def test_a_missing_component_is_named_only_where_it_is_needed(
    magi2: Magi2, folder: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, golden: Path
) -> None:
    weights = shutil.copytree(tiny_checkpoint, folder / "weights")
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(weights))
    shutil.rmtree(weights / "refiner")
    (weights / "vae" / "Wan2.2_VAE.pth").unlink()
    check_refused(magi2("render", "-p", "x", "--profile", "tiny"), 2, "refiner/*.safetensors is missing", folder)
    image = golden / "output" / "images" / "square_100.png"
    with_image = magi2("render", "-p", "x", "--profile", "tiny-preview", "--image", image)
    check_refused(with_image, 2, "vae/Wan2.2_VAE.pth is missing", folder)
    assert magi2("stage", "enhance", "-p", "x", "--profile", "tiny-preview").code == 0


FFMPEG = find_ffmpeg().path
FAKE_FFMPEG = {
    "absent": (None, "is not a program"),
    "broken": ("#!/bin/sh\necho cannot load library >&2\nexit 1\n", "exits with 1: cannot load library"),
    "another program": ("#!/bin/sh\necho hello\n", "is not ffmpeg: it answers 'hello"),
    "without an encoder": (f'#!/bin/sh\n"{FFMPEG}" "$@" | grep -v libx264\n', "has no encoder libx264"),
    "older than 5.1": (
        f"""#!/bin/sh\ncase "$*" in *-fps_mode*) echo "Unrecognized option 'fps_mode'." >&2; exit 1;; esac
        exec "{FFMPEG}" "$@"\n""",
        "makes no clips: deliver clip.mp4: ffmpeg exits with 1: Unrecognized option 'fps_mode'",
    ),
    "without FFV1": (f'#!/bin/sh\n"{FFMPEG}" "$@" | grep -v ffv1\n', "has no encoder ffv1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAKE_FFMPEG)
def test_an_unfit_ffmpeg_is_found_before_anything_is_rendered(
    case: str, magi2: Magi2, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, message = FAKE_FFMPEG[case]
    program = folder / "ffmpeg"
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    monkeypatch.setenv("MAGI2_FFMPEG", str(program))
    check_refused(magi2("render", "-p", "x", "--profile", "tiny"), 3, message, folder)


def test_rows_read_nothing_outside_the_batchs_folder_nor_from_a_store_in_it(magi2: Magi2, folder: Path) -> None:
    (folder / "store" / "documents").mkdir(parents=True)
    (folder / "store" / "documents" / "a.txt").write_text("hunter2")
    (folder.parent / "beside.txt").write_text("hunter2")
    places = ("store/documents/a.txt", "../beside.txt", "/proc/self/environ")
    (folder / "night.jsonl").write_text("\n".join(f'{{"prompt_file": "{place}"}}' for place in places))
    said = magi2("render", "--profile", "tiny", "--prompts", "night.jsonl")
    assert said.code == 2 and "3 bad rows" in said.err and "hunter2" not in said.err + said.out
    assert "line 1: prompt_file store/documents/a.txt: unreadable: lies in the store" in said.err
    assert not (folder / "store" / "artifacts").exists()


def test_an_operating_systems_error_is_one_line_too(magi2: Magi2, folder: Path) -> None:
    (folder / "file").write_text("")
    said = magi2("checkpoint", "make-tiny", "file/below")
    assert said.code == 3 and said.error_lines[0].startswith("error: ") and len(said.error_lines) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "code", "message"),
    [
        (["render", "-p", "x", "--profile", "tiny"], {}, 2, "error: no model weights: MAGI2_CKPT_ROOT is not set"),
        (["render", "-p", "x", "--profile", "tiny"], {"MAGI2_FFMPEG": "/bin/false"}, 3, "/bin/false -version exits"),
        (["render", "--nonsense"], {}, 2, "No such option: --nonsense"),
    ],
)
def test_the_installed_program_says_the_same(
    arguments: list[str], variables: dict[str, str], code: int, message: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGI2_")}
    environment |= {"MAGI2_STORE": str(tmp_path / "store"), "PYTHONPATH": "", **variables}
    program = Path(sys.executable).with_name("magi2")
    done = subprocess.run(
        [program, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code and message in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()
