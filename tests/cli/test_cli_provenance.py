"""`magi2 marks` and `magi2 explain`: tables, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_said import Magi2
from tests.delivery.authority import make_signing
from tests.delivery.samples import KEY, flip_bit, write_marked, write_mp4, write_sidecar


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = write_marked(tmp_path / "clip.mp4")
    write_sidecar(path)
    return path


def test_marks_says_what_each_file_keeps_and_fails_when_one_does_not(magi2: Magi2, clip: Path, tmp_path: Path) -> None:
    said = magi2("marks", clip)
    assert said.code == 0, said.out + said.err
    assert said.out.splitlines()[1].split()[1:4] == ["once", "matches", "none"]
    assert "AIGC names no producer" in said.out

    bare = write_mp4(tmp_path / "bare.mp4")
    said = magi2("marks", clip, bare)
    assert said.code == 1 and "BAD: no AIGC entries" in said.out and "BAD: no sidecar" in said.out
    told = json.loads(magi2("marks", clip, bare, "--json").out)
    assert told["good"] is False and [bool(each["problems"]) for each in told["files"]] == [False, True]
    assert told["files"][0]["aigc"]["Label"] == "1" and told["files"][0]["sidecar"] == "matches"

    flip_bit(clip, len(clip.read_bytes()) // 2)
    assert json.loads(magi2("marks", clip, "--json").out)["files"][0]["sidecar"] == "differs"
    assert magi2("marks", tmp_path / "absent.mp4").code == 2


def test_explain_prints_the_sidecar_of_a_clip(magi2: Magi2, clip: Path) -> None:
    said = magi2("explain", clip)
    assert said.code == 0 and said.err == ""
    assert "prompt           a heron takes off" in said.out and KEY in said.out
    told = json.loads(magi2("explain", clip.with_suffix(".json"), "--json").out)
    assert (told["from"], told["record"]) == ("sidecar", json.loads(clip.with_suffix(".json").read_text()))
    clip.open("ab").write(b"\0\0\0\x08free")
    assert "is not the file that its sidecar tells of" in magi2("explain", clip).err


def test_explain_prints_what_the_file_says_where_there_is_no_sidecar(magi2: Magi2, clip: Path, tmp_path: Path) -> None:
    clip.with_suffix(".json").unlink()
    told = json.loads(magi2("explain", clip, "--json").out)
    assert told["from"] == "file" and told["record"]["magi2_artifact"] == KEY and told["record"]["AIGC"]["Label"] == "1"
    assert "magi2_seed       7" in magi2("explain", clip).out
    silent = magi2("explain", write_mp4(tmp_path / "bare.mp4"))
    assert silent.code == 2 and "no tag of ours" in silent.err
    assert "no such file" in magi2("explain", tmp_path / "absent.mp4").err
    assert json.loads(magi2("explain", "--schema").out)["$id"] == "magi2-sidecar-1"


def test_what_a_file_says_does_not_steer_a_terminal(magi2: Magi2, tmp_path: Path) -> None:
    clip = write_marked(tmp_path / "clip.mp4", producer="\x1b[2J studio")
    write_sidecar(clip, prompt="\x1b]0;title\x07 a heron", marking={"producer": "\x1b[2J"})
    for command in ("marks", "explain"):
        assert "\x1b" not in magi2(command, clip).out


@pytest.mark.slow
def test_signatures_that_cannot_be_made_are_refused_before_anything_is(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = make_signing(tmp_path / "pem", usage=None)
    for name, value in signing.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "one.json").write_text('["a heron"]')
    told = json.loads(magi2("doctor", "--profile", "tiny", "--json").out)
    (finding,) = [each for each in told["findings"] if each["what"] == "signatures"]
    assert finding["works"] is False and "cannot be signed" in finding["says"]
    for command in (("plan", "one.json"), ("render", "--prompts", "one.json")):
        said = magi2(*command, "--profile", "tiny")
        assert said.code == 2 and "cannot be signed" in said.err
    assert not list((tmp_path / "store").glob("documents/batches/*"))
    good = make_signing(tmp_path / "good")
    for name, value in good.environment.items():
        monkeypatch.setenv(name, value)
    assert "signed by test signer" in magi2("doctor", "--profile", "tiny").out
    assert magi2("plan", "one.json", "--profile", "tiny").code == 0
