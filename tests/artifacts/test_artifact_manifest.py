from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from magi2.artifacts import Manifest, ManifestDraft, Payload, Recipe, TensorSpec
from magi2.errors import CorruptedArtifactError, InputError

NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
DRAFT = ManifestDraft(
    recipe=Recipe("preview", 1, {"steps": 8}, seed=7),
    device="cuda",
    timings={"denoise": 12.0, "load": 0.25},
    flags=("offline_structurer",),
    report={"size": (272, 480), "scale": 5.0},
    host="node-1",
)
PAYLOADS = {
    "latents.safetensors": Payload(
        "latents.a0.safetensors",
        10,
        "ab" * 32,
        {"video": TensorSpec("float32", (16, 2, 3)), "state": TensorSpec("uint8", ())},
    ),
    "clip.mp4": Payload("clip.a0.mp4", 0, "cd" * 32),
}


def manifest() -> Manifest:
    return DRAFT.complete(PAYLOADS, NOW)


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    content = json.loads(manifest().to_bytes())
    change(content)
    return json.dumps(content).encode()


def setting(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


def dropping(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        del content[path[-1]]

    return change


def test_manifest_reads_back_equal() -> None:
    data = manifest().to_bytes()
    found = Manifest.from_bytes(data)
    assert found == manifest()
    assert found.to_bytes() == data
    assert found.payloads["latents.safetensors"].tensors == PAYLOADS["latents.safetensors"].tensors
    assert (found.key, found.stage, found.size_bytes) == (DRAFT.recipe.key, "preview", 10)


def test_equal_manifests_have_equal_bytes_whatever_the_order_and_time_zone() -> None:
    shuffled = DRAFT.complete(dict(reversed(PAYLOADS.items())), NOW.astimezone(timezone(timedelta(hours=8))))
    assert shuffled.to_bytes() == manifest().to_bytes()


def test_manifest_says_version_and_host_by_itself() -> None:
    made = ManifestDraft(recipe=DRAFT.recipe).complete(PAYLOADS, NOW)
    assert made.host
    assert made.code_version


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (dropping("recipe"), "'recipe' is missing"),
        (dropping("recipe", "seed"), "recipe: field 'seed' is missing"),
        (dropping("payloads", "clip.mp4", "sha256"), "clip.mp4: field 'sha256' is missing"),
        (setting("surprise", value=1), "unknown field 'surprise'"),
        (setting("recipe", "surprise", value=1), "recipe: unknown field 'surprise'"),
        (setting("format", value=3), "format 3"),
        (setting("format", value=True), "format"),
        (setting("key", value="ab" * 32), "is not the recipe's"),
        (setting("recipe", "seed", value=8), "is not the recipe's"),
        (setting("recipe", "seed", value=-1), "recipe"),
        (setting("recipe", value=[]), "recipe"),
        (setting("payloads", "clip.mp4", value=None), "payloads.clip.mp4"),
        (setting("payloads", "clip.mp4", "size_bytes", value="1"), "clip.mp4: size_bytes"),
        (setting("payloads", "clip.mp4", "size_bytes", value=-1), "clip.mp4"),
        (setting("payloads", "clip.mp4", "sha256", value="AB" * 32), "clip.mp4"),
        (setting("payloads", "clip.mp4", "file", value="../clip.mp4"), "not a plain file name"),
        (
            setting(
                "payloads", "../clip.mp4", value={"file": "a", "size_bytes": 0, "sha256": "ab" * 32, "tensors": None}
            ),
            "payload name",
        ),
        (setting("payloads", "latents.safetensors", "tensors", "video", "shape", value=[-1]), "tensors.video"),
        (setting("payloads", "latents.safetensors", "tensors", "video", "shape", value=[True]), "tensors.video"),
        (setting("created_at", value="yesterday"), "created_at"),
        (setting("created_at", value="2026-03-04T05:06:07"), "no time zone"),
        (setting("created_at", value="0001-01-01T00:00:00+14:00"), "manifest"),
        (setting("timings", "load", value="1"), "timings.load"),
        (setting("flags", value=[1]), "flags"),
        (setting("report", value=None), "report"),
        (setting("host", value=None), "host"),
    ],
)
def test_damaged_manifest_is_refused_naming_the_place(change: Callable[[dict[str, Any]], None], place: str) -> None:
    with pytest.raises(CorruptedArtifactError, match=place) as caught:
        Manifest.from_bytes(edited(change), place="store/manifest.json")
    assert str(caught.value).startswith("store/manifest.json: ")


@pytest.mark.parametrize("data", [b"", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format": NaN}'])
def test_text_that_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptedArtifactError, match=r"^here: "):
        Manifest.from_bytes(data, place="here")


def test_every_truncation_is_refused() -> None:
    data = manifest().to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptedArtifactError):
            Manifest.from_bytes(data[:length])


@pytest.mark.parametrize(
    "change",
    [
        setting("report", "scale", value=5.5),
        setting("flags", value=[]),
        setting("timings", "load", value=0.5),
        setting("device", value="cpu"),
        setting("payloads", "latents.safetensors", "tensors", "video", "shape", value=[16, 3, 2]),
        setting("payloads", "latents.safetensors", "tensors", "video", "dtype", value="float64"),
        setting("format", value=1),
        dropping("sha256"),
        dropping("report", "size"),
    ],
)
def test_no_value_changes_unseen(change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(manifest().to_bytes())
    change(content)
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    with pytest.raises(CorruptedArtifactError, match=r"sha256|SHA-256"):
        Manifest.from_bytes(text.encode())


def test_no_byte_changes_unseen() -> None:
    data = manifest().to_bytes()
    for position in range(len(data)):
        for bit in (0, 3, 5):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(CorruptedArtifactError):
                Manifest.from_bytes(bytes(changed))
    for changed in (data.replace(b"\n", b"\r\n"), data + b"\n", data[:-1], json.dumps(json.loads(data)).encode()):
        with pytest.raises(CorruptedArtifactError):
            Manifest.from_bytes(changed)


def test_a_manifest_from_before_digests_is_read() -> None:
    content = json.loads(manifest().to_bytes())
    del content["sha256"]
    assert Manifest.from_bytes(json.dumps({**content, "format": 1}).encode()) == manifest()


def test_infinite_time_in_the_text_is_refused() -> None:
    with pytest.raises(CorruptedArtifactError, match=r"timings\.load"):
        Manifest.from_bytes(manifest().to_bytes().replace(b"0.25", b"1e999"))


@pytest.mark.parametrize("change", [{"timings": {"load": float("nan")}}, {"report": {"x": object()}}])
def test_draft_that_is_no_json_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ManifestDraft(recipe=DRAFT.recipe, **change).complete(PAYLOADS, NOW)
