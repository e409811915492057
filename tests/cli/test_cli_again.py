"""`magi2 render --from-sidecar`: the same clip again, or a refusal before anything is made."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from magi2.artifacts.recipe import sha256_file
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2.delivery.record import make_sidecar
from magi2.delivery.sidecar import FileRecord
from magi2.recipes.lookup import StoredClip
from tests.cli.cli_said import Magi2
from tests.render_helpers import make_clip, make_context, render, small_profile

pytestmark = pytest.mark.slow

PROMPT = "a heron takes off"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A folder with the store of a clip with an image, its sidecar `heron.json` and the image. Read only."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "images").mkdir()
    image = folder / "images" / "any name.png"
    Image.new("RGB", (64, 32), (90, 120, 40)).save(image)
    profile = small_profile("enhancement.mode=offline")
    clip = make_clip(profile, PROMPT, image=image)
    context = make_context(tiny_checkpoint, folder / "store", profile, [clip])
    (outcome,) = render(context, [clip])
    assert outcome.failure is None
    found = StoredClip(context.store, context.book, clip)
    payload = found.manifests()["mux"].payloads["clip.mp4"]  # type: ignore[index]
    stored = FileRecord(sha256=payload.sha256, size_bytes=payload.size_bytes)
    sidecar = make_sidecar(clip, context.book, found, delivered=stored, signed=False)
    (folder / "heron.json").write_bytes(sidecar.to_bytes())
    return folder


def changed(made: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads((made / "heron.json").read_text())
    change(content)
    target.write_text(json.dumps(content))
    return target


def test_clip_comes_out_equal_elsewhere(
    magi2: Magi2, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From decode's artifact on; from an empty store it does among the deployment's tests."""
    for stage in ("negative", "encode", "preview", "decode"):
        shutil.copytree(made / "store" / "artifacts" / stage, tmp_path / "store" / "artifacts" / stage)
    configs = shutil.copytree(Settings().configs, tmp_path / "configs")
    (configs / "negative_prompt.txt").write_text("another one than the clip was made with")
    monkeypatch.setenv("MAGI2_CONFIGS", str(configs))
    monkeypatch.setenv("MAGI2_PE_BASE_URL", "http://127.0.0.1:9/")  # nobody is asked for a caption
    said = magi2("render", "--from-sidecar", made / "heron.json", "--images", made / "images", "--json")
    assert said.code == 0, said.err
    (clip,) = json.loads(said.out)["clips"]
    recorded = json.loads((made / "heron.json").read_text())
    made_here = {stage for stage, state in clip["stages"].items() if state == "made"}
    assert made_here == {"enhance", "mux", "deliver"}
    assert (clip["same_bytes"], clip["clip"], clip["key"]) == (
        True,
        recorded["clip_id"],
        recorded["stages"]["mux"]["key"],
    )
    assert sha256_file(Path(clip["files"]["clip.mp4"])) == recorded["stored"]["sha256"]


def test_images_come_from_the_store_and_what_is_stored_is_reused(magi2: Magi2, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "store", tmp_path / "store")
    said = magi2("render", "--from-sidecar", made / "heron.json", "--json")
    assert said.code == 0, said.err
    (clip,) = json.loads(said.out)["clips"]
    assert clip["same_bytes"] and {*clip["stages"].values()} <= {"reused", "made"}
    assert clip["stages"]["mux"] == clip["stages"]["preview"] == "reused"


def test_missing_image_and_other_weights_are_refused_before_anything_is_made(
    magi2: Magi2, made: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for more in ((), ("--images", tmp_path / "empty")):
        said = magi2("render", "--from-sidecar", made / "heron.json", *more)
        assert said.code == 2 and "<Figure 1>" in said.err and "--images FOLDER" in said.err
    other = changed(made, tmp_path / "other.json", lambda content: content["weights"].update(preview="0" * 64))
    said = magi2("render", "--from-sidecar", other, "--images", made / "images")
    assert said.code == 2 and "preview: the weights here are" in said.err
    assert not list((tmp_path / "store").glob("artifacts/*"))


def test_device_host_and_cost_are_told_by_full_sidecars_alone(made: Path, tiny_checkpoint: Path) -> None:
    image = made / "images" / "any name.png"
    told = {}
    for level in ("standard", "full"):
        profile = small_profile("enhancement.mode=offline", f"delivery.sidecar={level}")
        clip = make_clip(profile, PROMPT, image=image)
        context = make_context(tiny_checkpoint, made / "store", profile, [clip])
        found = StoredClip(context.store, context.book, clip)
        stored = FileRecord(sha256="0" * 64, size_bytes=1)
        told[level] = make_sidecar(
            clip, context.book, found, delivered=stored, signed=False, price=Price(3600.0, "EUR")
        ).to_bytes()
    standard, full = (json.loads(content) for content in told.values())
    assert standard["clip_id"] == full["clip_id"] and standard["stages"].keys() == full["stages"].keys()
    assert full["cost"]["accelerator_seconds"] > 0 and full["cost"]["currency"] == "EUR"
    assert full["cost"]["amount"] == pytest.approx(full["cost"]["accelerator_seconds"], abs=0.01)
    assert full["stages"]["mux"]["host"] == socket.gethostname() and full["stages"]["preview"]["device"] == "cpu"
    assert "cost" not in standard and not {"host", "device", "layout"} & standard["stages"]["mux"].keys()
    assert not [word for word in (socket.gethostname(), str(made)) if word.encode() in told["standard"]]


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "is no name": lambda content: content["profile"].update(name="../profiles/tiny"),
    "settings have delivery.target": lambda content: content["profile"]["settings"]["delivery"].update(target="studio"),
    "settings have delivery.name": lambda content: content["profile"]["settings"]["delivery"].update(name="../{name}"),
    "settings have delivery.watermark": lambda content: content["profile"]["settings"]["delivery"].update(watermark=1),
    "is a path or an address": lambda content: content["profile"]["settings"]["text"].update(
        negative_prompt="/etc/passwd"
    ),
    "unknown key 'endpoint'": lambda content: content["profile"]["settings"].update(endpoint="mine"),
    "http://x' is a path or an address": lambda content: content["profile"]["settings"].update(endpoint="http://x"),
    "extra|unknown key": lambda content: content.update(command="rm"),
    "enhancement.mode": lambda content: content["profile"]["settings"]["enhancement"].update(mode="shell"),
    "preview.steps": lambda content: content["profile"]["settings"]["preview"].update(steps=10**9),
    "settings are those of profile": lambda content: content["profile"]["settings"]["preview"].update(steps=2),
    "what it says makes clip": lambda content: content.update(prompt="another prompt"),
    "seed": lambda content: content.update(seed=2**60),
    "encode: this magi2 would make another clip": lambda content: content.update(caption="another caption"),
    "this magi2 would make another clip": lambda content: content.update(negative_prompt="/etc/passwd"),
    "the other way round|would make another": lambda content: content.pop("negative_prompt"),
    "this magi2 reads 1": lambda content: content.update(version=2),
    "version is 'x'": lambda content: content.update(version="x"),
    "nor in": lambda content: content["images"].append({"figure": 2, "sha256": "ab" * 32}),
}


@pytest.mark.parametrize("message", WRONG)
def test_sidecar_is_somebody_elses_words(magi2: Magi2, made: Path, tmp_path: Path, message: str) -> None:
    file = changed(made, tmp_path / "wrong.json", WRONG[message])
    said = magi2("render", "--from-sidecar", file, "--images", made / "images")
    assert said.code == 2 and any(part in said.err for part in message.split("|")), said.err
    assert not list((tmp_path / "store").glob("artifacts/*"))


def test_file_that_is_no_sidecar_is_refused(magi2: Magi2, tmp_path: Path) -> None:
    files = {
        "not JSON": b"{",
        "not a JSON object": b"[]",
        "is no UTF-8": b"\xff",
        "at most 4194304": b" " * (2**22 + 1),
        "nested more than": b"[" * 5000 + b"]" * 5000,
        "surrogate": b'{"version": 1, "prompt": "\\ud800"}',
    }
    for message, content in files.items():
        (tmp_path / "odd.json").write_bytes(content)
        said = magi2("render", "--from-sidecar", "odd.json")
        assert said.code == 2 and message in said.err, said.err
    assert "give no prompt" in magi2("render", "--from-sidecar", "odd.json", "--prompt", "x").err
    assert "goes with --from-sidecar" in magi2("render", "--images", ".", "--prompt", "x").err
