"""`magi2 render` and `magi2 stage`: files, tables, JSON, flags and exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from magi2.batches.spread import Spread
from magi2.cli.render import Asked, clips_of
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError
from magi2.jobs import render as jobs_render
from magi2.jobs.render import ClipRender
from magi2.media.probe import probe
from tests.cli.cli_said import Magi2
from tests.render_helpers import SMALL, flip_byte, make_clip, make_context, payload_file, render, small_profile

pytestmark = pytest.mark.slow

SET = [argument for override in SMALL for argument in ("--set", override)]
TINY = ["--profile", "tiny-preview", *SET]


@pytest.fixture(scope="module")
def two_clips(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A store with the finished clips of the prompts `one` and `two`. Read only: copy it to change it."""
    store, profile = tmp_path_factory.mktemp("two") / "store", small_profile()
    clips = [make_clip(profile, prompt, seed) for seed, prompt in enumerate(("one", "two"))]
    assert not any(outcome.failure for outcome in render(make_context(tiny_checkpoint, store, profile, clips), clips))
    return store


def rendered(magi2: Magi2, *arguments: object) -> dict[str, Any]:
    said = magi2("render", *TINY, "--json", *arguments)
    content: dict[str, Any] = json.loads(said.out)
    assert said.code == (1 if content["clips_failed"] else 0)
    return content


def test_one_prompt_becomes_a_playable_file_and_is_reused(magi2: Magi2, tmp_path: Path) -> None:
    first = rendered(magi2, "--prompt", "a heron takes off", "--seed", 7)
    (clip,) = first["clips"]
    assert (clip["state"], clip["seed"], clip["flags"], clip["error"]) == ("done", 7, [], None)
    assert set(clip["stages"].values()) == {"made"} and first["stages_computed"] == 5
    files = {name: tmp_path / path for name, path in clip["files"].items()}
    assert files["clip.mp4"] == tmp_path / "out" / "prompt_7_tiny-preview.mp4"
    assert all(path.is_file() for path in files.values()) and len(files) == 4
    found = probe(files["clip.mp4"])
    assert found.video is not None and found.video.frame_count == 125
    assert found.metadata["magi2_seed"] == "7"

    files["clip.mp4"].unlink()
    again = rendered(magi2, "--prompt", "a heron takes off", "--seed", 7)
    assert (again["stages_computed"], again["stages_reused"]) == (0, 5)
    assert files["clip.mp4"].is_file() and not list((tmp_path / "out").glob(".*"))

    forced = rendered(magi2, "--prompt", "a heron takes off", "--seed", 7, "--force", "--name", "again")
    assert forced["stages_computed"] == 5 and forced["clips"][0]["flags"] == [], "made again, and equal"
    assert forced["clips"][0]["key"] == clip["key"]
    assert [batch["name"] for batch in json.loads(magi2("status", "--json").out)["batches"]] == ["again", "prompt"]


def test_seeds_and_choices_of_a_command_are_clips_of_their_own(magi2: Magi2, tmp_path: Path) -> None:
    spread = Spread(matrix=True, seeds=(1, 2))
    clips, _ = clips_of(Asked("a {red|blue} kite", None, None, "tiny-preview", None, [], None, None, spread))
    assert sorted((clip.prompt, clip.seed) for clip in clips) == [
        ("a blue kite", 1),
        ("a blue kite", 2),
        ("a red kite", 1),
        ("a red kite", 2),
    ]
    for arguments, error in (
        (("--seed", 1, "--seeds", "1,2"), "--seed and --seeds exclude each other"),
        (("--seeds", "1,1"), "seeds has 1 twice"),
        (("--on-limit", "perhaps"), "on_limit is 'perhaps', must be stop or continue"),
    ):
        said = magi2("render", *TINY, "--prompt", "a kite", *arguments)
        assert (said.code, error in said.err) == (2, True), said.err


def test_a_batch_with_one_bad_clip_finishes_the_others(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": "a heron", "name": "[/bold] :bird: good"},
        {"prompt": "much too long " * 20, "name": "long"},
        {"prompt": "much too long " * 20, "name": "cut", "profile": "cut"},
    ]
    (tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    profile = "{preview: {width: 64, height: 32, steps: 1}, refiner: null, architectures: {preview: preview_tiny, "
    profile += "refiner: refiner_tiny, video_vae: video_vae_tiny}, compute_dtype: float32, text: {%s}}"
    limits = "use_negative_prompt: false, max_tokens: 30"
    profiles = shutil.copytree(Settings().configs, tmp_path / "configs") / "profiles"
    monkeypatch.setenv("MAGI2_CONFIGS", str(tmp_path / "configs"))
    (tmp_path / "short.yaml").write_text(profile % limits)
    (profiles / "cut.yaml").write_text(profile % f"{limits}, on_overflow: truncate")
    said = magi2("render", "--prompts", "batch.jsonl", "--profile", "short.yaml", "--out", "clips")
    assert said.code == 1
    assert "clips_done=1 clips_flagged=1 clips_failed=1" in said.out
    assert "[/bold] :bird: good" in said.out and "text_truncated" in said.out
    assert "failed: prompt: " in said.err and "limit 30" in said.err
    assert len(list((tmp_path / "clips").glob("*.mp4"))) == 2


def test_a_damaged_delivered_file_fails_its_clip_and_heals(magi2: Magi2, two_clips: Path, tmp_path: Path) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    (tmp_path / "two.json").write_text('[{"prompt": "one", "seed": 0}, {"prompt": "two", "seed": 1}]')
    first = rendered(magi2, "--prompts", "two.json")
    originals = {clip["clip"]: Path(clip["files"]["clip.mp4"]).read_bytes() for clip in first["clips"]}
    key = next((tmp_path / "store" / "artifacts" / "mux").glob("*/*")).name
    flip_byte(payload_file(tmp_path / "store", "mux", key, "clip.mp4"))
    damaged = rendered(magi2, "--prompts", "two.json")
    assert (damaged["clips_done"], damaged["clips_failed"]) == (1, 1)
    (failed,) = [clip for clip in damaged["clips"] if clip["state"] == "failed"]
    assert (failed["failed_stage"], failed["files"]) == ("deliver", {}) and "SHA-256" in failed["error"]
    healed = rendered(magi2, "--prompts", "two.json")
    assert (healed["clips_done"], healed["stages_computed"]) == (2, 1)
    assert {clip["clip"]: Path(clip["files"]["clip.mp4"]).read_bytes() for clip in healed["clips"]} == originals


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "Read-only")])
def test_clip_that_does_not_fit_into_the_folder_fails_alone_and_all_are_told(
    magi2: Magi2, two_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    (tmp_path / "two.json").write_text('[{"prompt": "one", "seed": 0}, {"prompt": "two", "seed": 1}]')
    copy, copied = shutil.copyfileobj, []

    def fill(source: BinaryIO, target: BinaryIO, size: int) -> None:
        if len(copied) == 4:  # the first clip's files
            target.write(b"begun")
            raise OSError(number, os.strerror(number))
        copied.append(source)
        copy(source, target, size)

    with monkeypatch.context() as faults:
        faults.setattr(shutil, "copyfileobj", fill)
        told = rendered(magi2, "--prompts", "two.json")
    good, failed = told["clips"]
    assert (good["state"], failed["state"], failed["failed_stage"], failed["files"]) == (
        "done",
        "failed",
        "deliver",
        {},
    )
    assert "target --out: " in failed["error"] and hint in failed["error"]
    assert {state for stage, state in failed["stages"].items() if stage != "deliver"} == {
        "reused"
    }  # it is in the store
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert rendered(magi2, "--prompts", "two.json")["clips_done"] == 2


def test_render_that_stops_halfway_tells_what_was_made(
    magi2: Magi2, two_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    profiles = shutil.copytree(Settings().configs, tmp_path / "configs") / "profiles"
    monkeypatch.setenv("MAGI2_CONFIGS", str(tmp_path / "configs"))
    (profiles / "other.yaml").write_text("extends: tiny-preview\ndelivery: {crf: 30}\n")
    rows = [{"prompt": "one", "seed": 0}, {"prompt": "two", "seed": 1, "profile": "other"}]
    (tmp_path / "two.json").write_text(json.dumps(rows))

    def fill(*arguments: object) -> None:
        raise InfrastructureError("the disk is full")

    monkeypatch.setattr(jobs_render, "run_stage", fill)  # which the second clip needs
    said = magi2("render", *TINY, "--prompts", "two.json", "--json")
    assert said.code == 3 and "the disk is full" in said.err
    told = json.loads(said.out)
    assert [clip["state"] for clip in told["clips"]] == ["done"]
    status = json.loads(magi2("status", told["batch"], "--json").out)
    assert (status["state"], status["clips"]["done"], status["clips"]["failed"]) == ("failed", 1, 1)


def test_stages_by_hand(magi2: Magi2, tmp_path: Path) -> None:
    prompt = ["--prompt", "a heron", *TINY]
    early = magi2("stage", "preview", *prompt)
    assert early.code == 1 and "run the enhance stage first" in early.out
    for stage in ("enhance", "encode", "preview", "decode"):
        assert magi2("stage", stage, *prompt).code == 0
    said = magi2("stage", "mux", *prompt, "--json")
    content = json.loads(said.out)
    assert (said.code, content["stage"], content["clips"][0]["state"]) == (0, "mux", "made")
    assert magi2("stage", "mux", *prompt).out.split()[1:3] == ["mux", "reused"]
    assert magi2("render", *prompt, "--json").out.count('"reused"') == 5

    unknown = magi2("stage", "muxx", *prompt)
    assert unknown.code == 2 and "no stage 'muxx' (did you mean 'mux'?)" in unknown.err
    absent = magi2("stage", "refine", *prompt)
    assert absent.code == 2 and "has no stage 'refine'" in absent.err


def test_deliver_by_hand_goes_where_row_option_or_profile_says(
    magi2: Magi2, two_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    for name in ("studio", "archive"):
        (tmp_path / name).mkdir()
    targets = {name: str(tmp_path / name) for name in ("studio", "archive")}
    monkeypatch.setenv("MAGI2_DELIVERY_TARGETS", json.dumps(targets))
    rows = [{"prompt": "one", "seed": 0, "name": "first", "delivery_target": "studio"}, {"prompt": "two", "seed": 1}]
    (tmp_path / "two.json").write_text(json.dumps(rows))
    prompts = ["--prompts", "two.json", *TINY]

    said = magi2("stage", "deliver", *prompts, "--set", "delivery.target=archive", "--json")
    assert said.code == 0 and [clip["state"] for clip in json.loads(said.out)["clips"]] == ["made", "made"]
    assert (tmp_path / "studio" / "two" / "first_0_tiny-preview.mp4").is_file()
    assert (tmp_path / "archive" / "two" / "row_2_1_tiny-preview.mp4").is_file() and not (tmp_path / "out").exists()

    told = rendered(magi2, "--prompts", "two.json", "--out", "folder", "--set", "delivery.target=archive")
    places = {clip["names"][0]: clip["deliveries"][0]["target"] for clip in told["clips"]}
    assert places == {"first": "studio", "row 2": "--out"} and len(list((tmp_path / "folder").iterdir())) == 4
    first = next(clip for clip in told["clips"] if clip["names"] == ["first"])
    assert first["stages"]["deliver"] == "reused" and first["deliveries"][0]["name"] == "two/first_0_tiny-preview.mp4"

    unknown = magi2("render", *prompts, "--set", "delivery.target=studios")
    assert unknown.code == 2 and "did you mean 'studio'?" in unknown.err
    missing = magi2("stage", "deliver", "--prompt", "never rendered", *TINY)
    assert missing.code == 1 and "run the mux stage first" in missing.out


def test_what_retention_took_is_not_made_again(magi2: Magi2, two_clips: Path, tmp_path: Path) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    prompt = ["--prompt", "one", "--seed", 0]
    clip = Path(rendered(magi2, *prompt)["clips"][0]["files"]["clip.mp4"]).read_bytes()
    decoded = tmp_path / "store" / "artifacts" / "decode"
    assert "would remove 2 decode artifacts" in magi2("gc", "--days", 0).out and list(decoded.glob("*/*"))
    assert json.loads(magi2("gc", "--days", 0, "--delete", "--json").out)["freed_bytes"] > 0
    assert not list(decoded.glob("*/*"))
    again = rendered(magi2, *prompt)
    assert (again["stages_computed"], again["stages_reused"], again["clips_done"]) == (0, 4, 1)
    assert Path(again["clips"][0]["files"]["clip.mp4"]).read_bytes() == clip
    unknown = magi2("gc", "--stage", "decod")
    assert unknown.code == 2 and "did you mean 'decode'?" in unknown.err
    assert magi2("gc", "--stage", "enhance").code == 2, "captions are never removed"


@pytest.mark.parametrize("command", ["render", "stage", "plan", "doctor"])
def test_a_profile_for_other_weights_is_one_sentence_before_anything_is_made(
    magi2: Magi2, tmp_path: Path, command: str
) -> None:
    (tmp_path / "two.json").write_text('["one", "two"]')
    arguments = {
        "render": ("-p", "x", "--profile", "demo"),
        "stage": ("enhance", "-p", "x", "--profile", "demo"),
        "plan": ("two.json",),
        "doctor": ("--profile", "demo"),
    }
    said = magi2(command, *arguments[command])
    assert said.code == (1 if command == "doctor" else 2)
    assert "these weights are random tiny ones: take --profile tiny" in (said.out if command == "doctor" else said.err)
    assert not list((tmp_path / "store").glob("artifacts/*"))


def test_no_path_is_broken_and_no_library_speaks_on_a_narrow_terminal(
    magi2: Magi2, two_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(two_clips, tmp_path / "store")
    (tmp_path / "two.json").write_text(json.dumps([{"prompt": "one", "seed": 0}, {"prompt": "two", "seed": 1}]))
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / ("a folder with a long name " * 6).strip()
    said = magi2("render", "--prompts", "two.json", "--profile", "tiny-preview", *SET, "--out", folder)
    assert said.code == 0, said.err
    shown = [line.strip() for line in said.out.splitlines() if line.strip().endswith(".mp4")]
    assert len(shown) == 2 and all(Path(path).is_file() for path in shown)


def test_interrupted_render_says_that_the_same_command_goes_on(
    magi2: Magi2, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(render: ClipRender) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClipRender, "render", interrupt)
    said = magi2("render", "-p", "x", "--profile", "tiny-preview")
    assert said.code == 130
    assert "the same command goes on from here" in said.err
