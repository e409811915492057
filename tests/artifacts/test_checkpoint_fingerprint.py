from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts import checkpoint_fingerprint, fingerprint
from magi2.errors import CheckpointError


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "ckpt"
    (folder / "part").mkdir(parents=True)
    files = [folder / "one.safetensors", folder / "part" / "two.safetensors", folder / "three.safetensors"]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]) * 1000)
    return files


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content was read."""
    names: list[str] = []
    real = fingerprint.sha256_file

    def recording(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(fingerprint, "sha256_file", recording)
    return names


def test_unchanged_files_are_not_read_again(weights: list[Path], hashed: list[str]) -> None:
    first = checkpoint_fingerprint(weights)
    assert sorted(hashed) == ["one.safetensors", "three.safetensors", "two.safetensors"]
    hashed.clear()
    assert checkpoint_fingerprint(weights) == first
    assert hashed == []


def test_only_the_changed_file_is_read_again(weights: list[Path], hashed: list[str]) -> None:
    first = checkpoint_fingerprint(weights)
    hashed.clear()
    weights[1].write_bytes(b"\x07" * 1000)
    os.utime(weights[1], ns=(1, 1))
    assert checkpoint_fingerprint(weights) != first
    assert hashed == ["two.safetensors"]


def test_new_time_with_the_same_content_gives_the_same_fingerprint(weights: list[Path], hashed: list[str]) -> None:
    first = checkpoint_fingerprint(weights)
    hashed.clear()
    os.utime(weights[0], ns=(5, 5))
    assert checkpoint_fingerprint(weights) == first
    assert hashed == ["one.safetensors"]


def test_order_and_place_do_not_matter_and_names_do(weights: list[Path], tmp_path: Path) -> None:
    first = checkpoint_fingerprint(weights)
    assert checkpoint_fingerprint([*reversed(weights), weights[0]]) == first
    moved = shutil.copytree(tmp_path / "ckpt", tmp_path / "elsewhere" / "copy")
    files = [moved / path.relative_to(tmp_path / "ckpt") for path in weights]
    assert checkpoint_fingerprint(files) == first
    files[0].rename(moved / "renamed.safetensors")
    assert checkpoint_fingerprint([moved / "renamed.safetensors", *files[1:]]) != first


def test_content_that_moves_between_files_changes_the_fingerprint(weights: list[Path]) -> None:
    first = checkpoint_fingerprint(weights)
    one, two = weights[0].read_bytes(), weights[1].read_bytes()
    weights[0].write_bytes(two)
    weights[1].write_bytes(one)
    for path in weights[:2]:
        os.utime(path, ns=(9, 9))
    assert checkpoint_fingerprint(weights) != first


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "null",
        lambda text: "[]",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"size_bytes": 1000', '"size_bytes": "1000"'),
        lambda text: text.replace(json.loads(text)["files"][0]["sha256"], "ab" * 32),
        lambda text: json.dumps({**json.loads(text), "files": [1]}),
    ],
)
def test_damaged_sidecar_is_computed_again(weights: list[Path], tmp_path: Path, hashed: list[str], damage: Any) -> None:
    sidecar = tmp_path / "sidecar.json"
    first = checkpoint_fingerprint(weights, sidecar)
    sidecar.write_text(damage(sidecar.read_text()))
    hashed.clear()
    assert checkpoint_fingerprint(weights, sidecar) == first
    assert len(hashed) == 3
    hashed.clear()
    assert checkpoint_fingerprint(weights, sidecar) == first
    assert hashed == []


def test_two_sets_of_files_share_one_sidecar(weights: list[Path], tmp_path: Path, hashed: list[str]) -> None:
    sidecar = tmp_path / "sidecar.json"
    one, three = [weights[0]], [weights[2]]
    expected = checkpoint_fingerprint(one, sidecar), checkpoint_fingerprint(three, sidecar)
    hashed.clear()
    assert (checkpoint_fingerprint(one, sidecar), checkpoint_fingerprint(three, sidecar)) == expected
    assert hashed == []


def test_read_only_folder_is_remembered_in_the_cache_folder(
    weights: list[Path], tmp_path: Path, hashed: list[str]
) -> None:
    unwritable = tmp_path / "file"
    unwritable.write_bytes(b"")
    sidecar, cache = unwritable / "sidecar.json", tmp_path / "cache" / "fingerprints"
    first = checkpoint_fingerprint(weights, sidecar, cache_folder=cache)
    hashed.clear()
    assert checkpoint_fingerprint(weights, sidecar, cache_folder=cache) == first
    assert hashed == []


def test_stale_sidecar_in_a_read_only_folder_does_not_hide_the_cache(
    weights: list[Path], tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_fingerprint(weights)
    os.utime(weights[0], ns=(5, 5))
    real = fingerprint.write_durably

    def write(path: Path, content: bytes) -> None:
        if path.name.startswith(fingerprint.SIDECAR_NAME):
            raise PermissionError(13, "Permission denied", str(path))
        real(path, content)

    monkeypatch.setattr(fingerprint, "write_durably", write)
    checkpoint_fingerprint(weights, cache_folder=tmp_path / "cache")
    hashed.clear()
    checkpoint_fingerprint(weights, cache_folder=tmp_path / "cache")
    assert hashed == []


def test_nothing_writable_still_gives_the_fingerprint(weights: list[Path], tmp_path: Path) -> None:
    unwritable = tmp_path / "file"
    unwritable.write_bytes(b"")
    assert checkpoint_fingerprint(weights, unwritable / "sidecar.json") == checkpoint_fingerprint(weights)


def test_missing_weight_file_is_named(weights: list[Path]) -> None:
    weights[1].unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors"):
        checkpoint_fingerprint(weights)


def test_no_files_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no weight files"):
        checkpoint_fingerprint([])


def test_file_that_changes_while_it_is_read_is_refused(weights: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = fingerprint.sha256_file

    def growing(path: Path) -> str:
        digest = real(path)
        path.write_bytes(b"longer" * 1000)
        return digest

    monkeypatch.setattr(fingerprint, "sha256_file", growing)
    with pytest.raises(CheckpointError, match="changed while"):
        checkpoint_fingerprint(weights)
