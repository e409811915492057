"""A stand-in for the published folder: every tensor by name, shape and dtype in files of the real sizes, without data.

Weight files are holes, which take no space on a disk: whoever has not downloaded 307 GB can try paths, mounts, plans
and checks. The folder says of itself that it is hollow, and nothing is rendered from it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from magi2.checkpoints.headers import json_object
from magi2.checkpoints.layout import COMPONENTS, HOLLOW_KEY, HOLLOW_NAME
from magi2.checkpoints.published import (
    AUDIO_CONFIG,
    SAFETENSORS_DTYPES,
    SHARDS,
    TEXT_CONFIG,
    TURBO_CONFIG,
    TensorSpec,
    published_tensors,
)
from magi2.config.profile import Architectures
from magi2.errors import CheckpointError
from magi2.files import disk_errors, partial_file
from magi2.models.checkpoint import INDEX_NAME, SINGLE_NAME
from magi2.models.preview.config import BF16, Weights
from magi2.models.text_encoder.tiny import TOKENIZER_CONFIG, build_tokenizer

_ALIGNMENT = 8
_PROBE_BYTES = 64 * 2**20
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own
_NOTE = (
    "Made by magi2 checkpoint make-hollow: names, shapes, dtypes and sizes of the published weights, no values. "
    "Assumed: where files are cut, the dtypes of text encoder and codecs, a tokenizer of bytes and few words, which "
    "counts more tokens than the published one. Left out: what no stage reads of networks that are not MAGI-2's, "
    "about 10 GB."
)


def make_hollow(root: Path, architectures: Architectures, weights: Weights = BF16) -> list[str]:
    """Make the stand-in at `root`, a new or empty folder, and give back its components' names.

    `architectures` are those of profile 1080p, `weights` the format of the preview's. One that was
    interrupted is completed and a complete one is left as it is; a file that is there is never written again.
    Raises: CheckpointError when `root` holds something else, or its file system keeps no holes or no files so long;
    InfrastructureError when the disk is away or full.
    """
    marker = root / HOLLOW_NAME
    note = {HOLLOW_KEY: True, "note": _NOTE} | ({} if weights == BF16 else {"weights": weights})
    with disk_errors(root, CheckpointError):
        if not marker.is_file() and root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise CheckpointError(f"{root} is no empty folder and no hollow one", hint="name a new folder")
        if (made := json_object(marker)) and made.get("weights", BF16) != weights:
            raise CheckpointError(f"{root} is hollow with other weights than {weights}", hint="name a new folder")
        root.mkdir(parents=True, exist_ok=True)
        tensors = published_tensors(architectures, weights)
        _require_holes(root, max(_file_sizes(tensors)))
        _write(marker, json.dumps(note, indent=1))
        for component, specs in tensors.items():
            folder = root / COMPONENTS[component].folder
            folder.mkdir(exist_ok=True)
            _write_component(component, folder, specs)
    return list(tensors)


def size_on_disk(root: Path) -> tuple[int, int]:
    """Bytes that the files of a folder seem to have, and bytes that they take."""
    states = [path.stat() for path in root.rglob("*") if path.is_file()]
    return sum(state.st_size for state in states), sum(state.st_blocks for state in states) * _BLOCK_BYTES


def _require_holes(root: Path, longest: int) -> None:
    """Raise CheckpointError unless files of this file system take no space where nothing was written."""
    probe, advice = root / ".hole.partial", "name a folder on ext4, xfs, btrfs, zfs or tmpfs"
    try:
        probe.touch()
        os.truncate(probe, _PROBE_BYTES)
        taken = probe.stat().st_blocks * _BLOCK_BYTES
        if taken > _PROBE_BYTES // 2:
            found = f"{_PROBE_BYTES:,} bytes without data take {taken:,}"
            raise CheckpointError(f"{root}: its file system keeps no sparse files: {found}", hint=advice)
        os.truncate(probe, longest)
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.EINVAL):
            raise
        hint = f"{advice}, and look at ulimit -f"
        raise CheckpointError(f"{root}: takes no file of {longest:,} bytes: {error.strerror}", hint=hint) from error
    finally:
        probe.unlink(missing_ok=True)


def _file_sizes(tensors: Mapping[str, Mapping[str, TensorSpec]]) -> Iterable[int]:
    """Bytes of the values in each weight file."""
    for component, specs in tensors.items():
        for part in _cut(specs, SHARDS.get(component, 1)):
            yield sum(spec.size_bytes for spec in part.values())


def _write_component(component: str, folder: Path, specs: Mapping[str, TensorSpec]) -> None:
    match component:
        case "text_encoder":
            _write(folder / "config.json", json.dumps(TEXT_CONFIG, indent=1))
            _write(folder / "tokenizer_config.json", json.dumps(TOKENIZER_CONFIG, indent=1))
            _write(folder / "tokenizer.json", build_tokenizer().to_str())
            _write_shards(folder, specs, SHARDS[component], stem=SINGLE_NAME)
        case "preview" | "refiner":
            _write_shards(folder, specs, SHARDS[component], stem="model")
        case "video_vae":
            _write_pickle(folder / "Wan2.2_VAE.pth", _empty(specs))
        case "turbo_vae":
            _write(folder / "TurboV3-Wan22-TinyShallow_7_7.json", json.dumps(TURBO_CONFIG, indent=1))
            _write_pickle(folder / "checkpoint.ckpt", {"ema_state_dict": _empty(specs)})
        case "audio_vae":
            _write(folder / "model_config.json", json.dumps(AUDIO_CONFIG, indent=1))
            _write_safetensors(folder / SINGLE_NAME, specs)


def _write(path: Path, text: str) -> None:
    if not path.exists():
        with partial_file(path, CheckpointError) as partial:
            partial.write_text(text, encoding="utf-8")


def _write_shards(folder: Path, specs: Mapping[str, TensorSpec], count: int, *, stem: str) -> None:
    """`count` files of about equal size, and their index, which comes last."""
    weight_map: dict[str, str] = {}
    for number, part in enumerate(_cut(specs, count), start=1):
        name = f"{stem}-{number:05d}-of-{count:05d}.safetensors"
        _write_safetensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    total = sum(spec.size_bytes for spec in specs.values())
    _write(folder / INDEX_NAME, json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))


def _cut(specs: Mapping[str, TensorSpec], count: int) -> list[dict[str, TensorSpec]]:
    """`count` parts in order; a tensor belongs to the part in which its first byte lies."""
    total, start = sum(spec.size_bytes for spec in specs.values()), 0
    parts: list[dict[str, TensorSpec]] = [{} for _ in range(count)]
    for name, spec in specs.items():
        parts[start * count // total][name] = spec
        start += spec.size_bytes
    return parts


def _write_safetensors(path: Path, specs: Mapping[str, TensorSpec]) -> None:
    if path.exists():
        return
    header: dict[str, Any] = {"__metadata__": {"format": "pt", HOLLOW_KEY: "true"}}
    end = 0
    for name, spec in specs.items():
        start, end = end, end + spec.size_bytes
        dtype, shape = SAFETENSORS_DTYPES[spec.dtype], list(spec.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with partial_file(path, CheckpointError) as partial:
        partial.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(partial, 8 + len(text) + end)


def _empty(specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """Tensors whose memory is never touched, and so takes none."""
    return {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}


def _write_pickle(path: Path, content: Mapping[str, Any]) -> None:
    if not path.exists():
        with partial_file(path, CheckpointError) as partial, torch.serialization.skip_data():
            torch.save(content, partial)
