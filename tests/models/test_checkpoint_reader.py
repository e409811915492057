"""The strict, streaming reader: what it refuses, and that it never holds more than a shard."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from magi2.errors import CheckpointError
from magi2.models.checkpoint import INDEX_NAME, SafetensorsFolder, load_module, read_pickled


def make_module(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(dtype)


def weights() -> dict[str, torch.Tensor]:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return {name: tensor + index for index, (name, tensor) in enumerate(module.state_dict().items())}


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 2) -> None:
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"shard-{shard}.safetensors"
        own = sorted(tensors)[shard::shards]
        save_file({name: tensors[name].detach().contiguous() for name in own}, folder / file_name)
        weight_map |= dict.fromkeys(own, file_name)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def change_index(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    change(index["weight_map"])
    (folder / INDEX_NAME).write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, weights())
    return tmp_path


def test_a_module_on_meta_is_filled_in_its_own_dtypes(folder: Path) -> None:
    module = make_module(torch.bfloat16)
    report = load_module(module, SafetensorsFolder(folder))
    assert (report.loaded, report.skipped) == (7, ())
    for name, tensor in module.state_dict().items():
        stored = weights()[name]
        assert tensor.dtype == (torch.int64 if name.endswith("num_batches_tracked") else torch.bfloat16)
        if not tensor.is_floating_point() or "running" in name:
            assert torch.equal(tensor.float(), stored.to(tensor.dtype).float())
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    source = SafetensorsFolder(tmp_path)
    assert source.files == [tmp_path / "model.safetensors"]
    assert load_module(make_module(), source, device="meta").loaded == 7


def test_renamed_transformed_and_skipped_tensors(tmp_path: Path) -> None:
    stored = {f"net.{name}": tensor for name, tensor in weights().items()} | {"head": torch.zeros(1)}
    write_shards(tmp_path, stored)
    module = make_module()
    report = load_module(
        module,
        SafetensorsFolder(tmp_path),
        rename=lambda name: name.removeprefix("net.") if name.startswith("net.") else None,
        transform=lambda name, tensor: 2 * tensor,
    )
    assert report.skipped == ("head",)
    assert module.load_report == report
    assert torch.equal(module.state_dict()["1.bias"], 2 * weights()["1.bias"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "shard-1.safetensors").unlink(), r"shard-1.safetensors: weight file is missing"),
        (lambda f: (f / INDEX_NAME).unlink(), r"neither model.safetensors.index.json nor model.safetensors"),
        (lambda f: (f / INDEX_NAME).write_text("{"), r"index.json: not a safetensors index"),
        (lambda f: (f / INDEX_NAME).write_text("[]"), r"index.json: not a safetensors index"),
        (lambda f: change_index(f, lambda m: m.update({"0.bias": 5})), r"index.json: not a safetensors index"),
        (lambda f: change_index(f, lambda m: m.update({"0.bias": "../x"})), r"'../x' leaves the folder"),
        (lambda f: change_index(f, lambda m: m.update({"9.bias": "x" * 300})), r"x{300}: weight file is missing"),
        (
            lambda f: change_index(f, lambda m: m.update({"0.scale": "shard-0.safetensors"})),
            r"shard-0.safetensors: the index promises '0.scale', the file lacks it",
        ),
        (
            lambda f: change_index(f, lambda m: m.pop("0.bias")),
            r"shard-0.safetensors: holds '0.bias', which the index does not list there",
        ),
        (
            lambda f: (f / "shard-1.safetensors").write_bytes((f / "shard-1.safetensors").read_bytes()[:-1]),
            r"shard-1.safetensors: unreadable or truncated",
        ),
        (lambda f: (f / "shard-0.safetensors").write_bytes(b"PK"), r"shard-0.safetensors: unreadable or truncated"),
    ],
)
def test_a_folder_that_is_not_what_its_index_says_is_refused(
    damage: Callable[[Path], object], message: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("1.weight"), r"1 tensors are missing, first '1.weight'"),
        (
            lambda tensors: tensors.update({"2.weight": torch.zeros(1)}),
            r"shard-\d.safetensors: 1 tensors that this model does not have, first '2.weight'",
        ),
        (
            lambda tensors: tensors.update({"0.weight": torch.zeros(3, 5)}),
            r"shard-\d.safetensors: 0.weight: shape \(3, 5\), the model wants \(3, 4\)",
        ),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_do_not_fit_are_refused_by_file_and_name(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, device: str, tmp_path: Path
) -> None:
    tensors = weights()
    change(tensors)
    write_shards(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=message):
        load_module(make_module(), SafetensorsFolder(tmp_path), device=device)


class Malicious:
    """Would run a command when unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.proof,))


def test_only_plain_tensors_are_unpickled(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "good.pth")
    assert torch.equal(read_pickled(tmp_path / "good.pth")["a"], torch.ones(2))
    torch.save({"a": torch.ones(2), "b": Malicious(tmp_path / "proof")}, tmp_path / "bad.pth")
    torch.save({"b": Malicious(tmp_path / "proof")}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({"a": torch.ones(99)}, tmp_path / "old-short.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "old-short.pth").write_bytes((tmp_path / "old-short.pth").read_bytes()[:-200])
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "empty.pth").touch()
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Malicious(tmp_path / "proof")))
    torch.save([torch.ones(2)], tmp_path / "list.pth")
    (tmp_path / "short.pth").write_bytes((tmp_path / "good.pth").read_bytes()[:-200])
    for name, message in (
        ("bad", "unreadable as a weights-only checkpoint"),
        ("old", "unreadable as a weights-only checkpoint"),
        ("old-short", "unreadable as a weights-only checkpoint"),
        ("raw", "unreadable as a weights-only checkpoint"),
        ("text", "unreadable as a weights-only checkpoint"),
        ("empty", "unreadable as a weights-only checkpoint"),
        ("short", "an archive of torch.save that is truncated"),
        ("list", "holds a list, not a mapping"),
        ("absent", "weight file is missing"),
    ):
        with pytest.raises(CheckpointError, match=rf"{name}.pth: {message}"):
            read_pickled(tmp_path / f"{name}.pth")
    assert not (tmp_path / "proof").exists()


def test_files_in_the_format_of_older_torch_are_read(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save(tensors, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(tmp_path / "old.pth")
    found = read_pickled(tmp_path / "old.pth")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items()) and found.keys() == tensors.keys()


MEASURE = """
import re, sys
from pathlib import Path
import torch
from torch import nn
from magi2.models.checkpoint import SafetensorsFolder, load_module

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

class Keeping(SafetensorsFolder):
    kept = []
    def read(self, name):
        self.kept.append(super().read(name).clone())
        return self.kept[-1]

class Forgetting(nn.Linear):
    # Stands for an accelerator: every byte is read and copied, and nothing stays in this memory.
    def __setattr__(self, name, value):
        if name != "weight" or name not in self._parameters:
            super().__setattr__(name, value)

with torch.device("meta"):
    module = nn.ModuleList(Forgetting({size}, {size}, bias=False) for _ in range({tensors}))
source = Keeping if sys.argv[2] == "keep" else SafetensorsFolder
warm = torch.zeros({size}, {size}).clone()
Path("/proc/self/clear_refs").write_text("5")
before = peak()
load_module(module, source(Path(sys.argv[1])), device="cpu")
print(peak() - before)
"""


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 shards of 16 MiB, four tensors each."""
    folder = tmp_path_factory.mktemp("many")
    tensors = {f"{index}.weight": torch.full((1024, 1024), float(index)) for index in range(48)}
    write_shards(folder, tensors, shards=12)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("how", "stays_small"), [("stream", True), ("keep", False)])
def test_loading_holds_less_than_two_shards(how: str, stays_small: bool, many_shards: Path) -> None:
    code = MEASURE.replace("{size}", "1024").replace("{tensors}", "48")
    arguments = [sys.executable, "-c", code, str(many_shards), how]
    # Freed memory goes back to the system at once, so that the allocator's slack is not taken for the reader's.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=120, env=environment)
    shard_bytes = (many_shards / "shard-0.safetensors").stat().st_size
    # The second case shows that a reader that kept what it read would be seen.
    assert (int(done.stdout) < 2 * shard_bytes) == stays_small, f"{int(done.stdout) / shard_bytes:.1f} shards"
