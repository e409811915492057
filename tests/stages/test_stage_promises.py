"""A manifest that is valid and promises what its stage never made is damage: found by whoever looks, and healed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts.local import LocalStore
from magi2.errors import CorruptedArtifactError
from magi2.recipes.lookup import StoredClip, find_whole
from magi2.stages.render import run_stage
from magi2.types import NEGATIVE, StageName
from tests.render_helpers import artifact_folder, digests, make_context, remove_stages, render
from tests.stages.stage_renders import Rendered

TENSORS = "tensors.safetensors"
Change = Callable[[dict[str, Any]], None]


def as_format_1(store: Path, stage: str, key: str, change: Change) -> None:
    """Write a manifest as it was before manifests carried a digest, changed."""
    path = artifact_folder(store, stage, key) / "manifest.json"
    content = json.loads(path.read_bytes())
    content |= {"format": 1}
    content.pop("sha256", None)
    change(content)
    path.chmod(0o644)
    path.write_text(json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1) + "\n")


def key_of(rendered: Rendered, stage: str) -> str:
    if stage == NEGATIVE:
        return next(LocalStore(rendered.store).keys(NEGATIVE))
    return next(result.key or "" for result in rendered.outcomes[0].results if result.stage.value == stage)


def renaming(name: str, new: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["payloads"][new] = content["payloads"].pop(name)

    return change


def tensors(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["payloads"][TENSORS]["tensors"]
    return found


def reshaping(tensor: str) -> Change:
    return lambda content: tensors(content)[tensor]["shape"].append(1)


def retyping(tensor: str) -> Change:
    return lambda content: tensors(content)[tensor].update(dtype="float16")


CHANGES = [
    ("enhance", renaming("caption.json", "captiom.json")),
    (NEGATIVE, reshaping("text_embeds")),
    ("encode", renaming(TENSORS, "tensorr.safetensors")),
    ("encode", lambda content: tensors(content).update(text=tensors(content).pop("text_embeds"))),
    ("preview", reshaping("video")),
    ("preview", retyping("audio")),
    ("preview", lambda content: content["payloads"][TENSORS].update(tensors=None)),
    ("preview", lambda content: tensors(content).pop("generator_state")),
    ("decode", renaming("sound.wav", "sount.wav")),
    ("mux", renaming("clip.mp4", "clip.mp5")),
    ("mux", renaming("poster.jpg", "Poster.jpg")),
]
IDS = [f"{stage}-{number}" for number, (stage, _) in enumerate(CHANGES)]


@pytest.mark.parametrize(("stage", "change"), CHANGES, ids=IDS)
def test_a_wrong_promise_counts_as_damage_wherever_the_artifact_is_looked_for(
    stage: str, change: Change, preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, key = preview_render.copy(tmp_path / "store"), key_of(preview_render, stage)
    as_format_1(store, stage, key, change)
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    with pytest.raises(CorruptedArtifactError, match=key):
        find_whole(context.store, stage, key, preview_render.profile)
    if stage != NEGATIVE:
        stored = StoredClip(context.store, context.book, preview_render.clips[0])
        assert stored.result(StageName(stage)) is None


@pytest.mark.parametrize("stage", ["enhance", NEGATIVE, "encode", "preview", "decode", "mux"])
def test_a_manifest_of_format_1_that_says_what_was_made_is_used(
    stage: str, preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, key = preview_render.copy(tmp_path / "store"), key_of(preview_render, stage)
    as_format_1(store, stage, key, lambda content: None)
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    assert find_whole(context.store, stage, key, preview_render.profile) is not None
    maker = StageName.ENCODE if stage == NEGATIVE else StageName(stage)
    (result,) = run_stage(context, maker, preview_render.clips[:1])
    assert result.state == "reused"


@pytest.mark.parametrize(("stage", "change"), [CHANGES[3], CHANGES[9]], ids=[IDS[3], IDS[9]])
def test_a_wrong_promise_heals_at_the_next_try_of_the_stage_that_made_it(
    stage: str, change: Change, preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    as_format_1(store, stage, key_of(preview_render, stage), change)
    if stage != "mux":
        remove_stages(store, preview_render.outcomes[0], "mux")
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips[:1])
    assert digests(store, outcome) == preview_render.digests[0]


def test_tensors_that_are_not_those_of_the_manifest_are_damage_for_every_reader(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, key = preview_render.copy(tmp_path / "store"), key_of(preview_render, "encode")
    as_format_1(store, "encode", key, lambda content: tensors(content)["text_embeds"]["shape"].__setitem__(1, 3))
    remove_stages(store, preview_render.outcomes[0], "preview")
    with pytest.raises(CorruptedArtifactError, match=r"holds .*text_embeds .*, the manifest says"):
        LocalStore(store).fetch("encode", key, TENSORS)
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    (result,) = run_stage(context, StageName.PREVIEW, preview_render.clips[:1])
    assert result.error and result.error.code == "corrupted_artifact"
    assert LocalStore(store).find("encode", key) is None


def test_a_preview_that_names_no_random_stream_is_damage_for_the_refiner(
    refined_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, key = refined_render.copy(tmp_path / "store"), key_of(refined_render, "preview")
    as_format_1(store, "preview", key, lambda content: content["report"].pop("generator_device"))
    remove_stages(store, refined_render.outcomes[0], "refine", "decode", "mux")
    context = make_context(tiny_checkpoint, store, refined_render.profile)
    (result,) = run_stage(context, StageName.REFINE, refined_render.clips[:1])
    assert result.error and result.error.code == "corrupted_artifact" and "random stream" in str(result.error)
    assert LocalStore(store).find("preview", key) is None


def test_a_manifest_whose_digest_fails_is_made_anew(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, key = preview_render.copy(tmp_path / "store"), key_of(preview_render, "mux")
    path = artifact_folder(store, "mux", key) / "manifest.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"device": "cpu"', b'"device": "cpv"'))
    with pytest.raises(CorruptedArtifactError, match=f"{path}: SHA-256 is"):
        LocalStore(store).find("mux", key)
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips[:1])
    assert digests(store, outcome) == preview_render.digests[0]
