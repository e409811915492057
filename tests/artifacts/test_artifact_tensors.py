from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from magi2.artifacts import TensorSpec, load_tensors, read_specs, save_tensors
from magi2.artifacts.tensors import open_sealed, seal_tensors
from magi2.errors import ContractError, CorruptedArtifactError, InfrastructureError
from tests.small_disk import files_of_at_most

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool),
    torch.complex64,
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "latents.safetensors"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_comes_back_equal_in_every_dtype(path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    specs = save_tensors(path, {"x": tensor})
    assert specs == {"x": TensorSpec(str(dtype).removeprefix("torch."), (2, 3))}
    loaded = load_tensors(path, specs=specs)["x"]
    assert loaded.dtype == dtype
    assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))


def test_tensors_arrive_on_the_device(path: Path, device: torch.device) -> None:
    tensors = {"a": torch.randn(3, device=device), "scalar": torch.tensor(2.0), "empty": torch.empty(0, 4)}
    loaded = load_tensors(path, specs=save_tensors(path, tensors), device=device)
    assert {name: tensor.device.type for name, tensor in loaded.items()} == dict.fromkeys(tensors, device.type)
    assert torch.equal(loaded["a"].cpu(), tensors["a"].cpu())
    assert loaded["scalar"].shape == ()
    assert loaded["empty"].shape == (0, 4)


def test_views_of_one_storage_are_saved_as_they_look(path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    specs = save_tensors(path, {"base": base, "transposed": base.T, "part": base[:, 1]})
    loaded = load_tensors(path, specs=specs)
    assert torch.equal(loaded["transposed"], base.T)
    assert torch.equal(loaded["part"], base[:, 1])


def test_parameters_are_saved_without_their_gradient(path: Path) -> None:
    specs = save_tensors(path, {"w": torch.nn.Parameter(torch.ones(2))})
    assert not load_tensors(path, specs=specs)["w"].requires_grad


def test_equal_tensors_and_metadata_give_equal_bytes(tmp_path: Path) -> None:
    contents = set()
    for number in range(10):
        path = tmp_path / f"{number}.safetensors"
        names = ["b", "a"] if number % 2 else ["a", "b"]
        save_tensors(path, {name: torch.ones(2) for name in names})
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_loaded_tensors_outlive_and_do_not_change_the_file(path: Path) -> None:
    specs = save_tensors(path, {"x": torch.ones(1000)})
    before = path.read_bytes()
    loaded = load_tensors(path, specs=specs)["x"]
    loaded.zero_()
    assert path.read_bytes() == before
    path.write_bytes(b"")
    assert loaded.sum() == 0


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"x": TensorSpec("float32", (2, 3)), "y": TensorSpec("float32", (1,))}, "'y' is missing"),
        ({}, "'x' is not expected"),
        ({"x": TensorSpec("float16", (2, 3))}, r"x: is float32\[2, 3\], expected float16\[2, 3\]"),
        ({"x": TensorSpec("float32", (3, 2))}, r"x: is float32\[2, 3\], expected float32\[3, 2\]"),
    ],
)
def test_other_tensors_than_expected_are_refused(path: Path, specs: dict[str, TensorSpec], message: str) -> None:
    save_tensors(path, {"x": torch.ones(2, 3)})
    with pytest.raises(ContractError, match=message):
        load_tensors(path, specs=specs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64], ids=str)
def test_values_that_are_not_finite_are_counted_and_refused_both_ways(path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, float("nan"), float("inf"), 2.0]).to(dtype)
    with pytest.raises(ContractError, match=r"latents\.safetensors: x: 2 of 4 values"):
        save_tensors(path, {"x": tensor})
    assert not path.exists()
    specs = save_tensors(path, {"x": tensor}, finite=False)
    with pytest.raises(ContractError, match="x: 2 of 4 values"):
        load_tensors(path, specs=specs)
    assert load_tensors(path, specs=specs, finite=False)["x"].shape == (4,)


@pytest.mark.parametrize("keep", [0, 7, 8, 20, -1])
def test_truncated_file_is_refused_by_its_header(path: Path, keep: int) -> None:
    specs = save_tensors(path, {"x": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:keep])
    for read in (lambda: read_specs(path), lambda: load_tensors(path, specs=specs)):
        with pytest.raises(CorruptedArtifactError, match=r"latents\.safetensors"):
            read()


def test_disk_that_takes_no_more_is_worth_a_retry_and_keeps_nothing_half(path: Path) -> None:
    with files_of_at_most(10_000), pytest.raises(InfrastructureError, match=r"latents\.safetensors: File too large"):
        save_tensors(path, {"x": torch.ones(10_000)})
    assert not path.exists()
    assert save_tensors(path, {"x": torch.ones(10_000)})


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_file_that_the_disk_does_not_give_is_not_called_damaged(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = save_tensors(path, {"x": torch.ones(3)})

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(f"{os.strerror(number)} (os error {number})")  # as the library raises it

    monkeypatch.setattr("magi2.artifacts.tensors.safe_open", fail)
    for read in (lambda: read_specs(path), lambda: load_tensors(path, specs=specs)):
        with pytest.raises(InfrastructureError, match=os.strerror(number)):
            read()


def test_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(CorruptedArtifactError, match=r"latents\.safetensors"):
        read_specs(path)


@pytest.mark.slow
def test_header_is_read_without_torch(path: Path) -> None:
    save_tensors(path, {"x": torch.ones(2, dtype=torch.bfloat16)})
    code = (
        "import sys; from pathlib import Path; from magi2.artifacts import read_specs\n"
        "assert read_specs(Path(sys.argv[1]))['x'].dtype == 'bfloat16' and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=20)


def test_sealed_tensors_come_back_and_no_changed_byte_is_overlooked() -> None:
    latents = torch.randn(2, 3)
    tensors = {"latents": latents, "view": latents, "step": torch.tensor(10), "stream": torch.arange(5).byte()}
    data = seal_tensors(tensors, {"recipe": "abc"})
    found, metadata = open_sealed(data, "here")
    assert metadata == {"recipe": "abc"}
    assert all(found[name].equal(tensor) for name, tensor in tensors.items()) and found.keys() == tensors.keys()
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= 1
        with pytest.raises(CorruptedArtifactError, match="here"):
            open_sealed(bytes(spoilt), "here")
    with pytest.raises(CorruptedArtifactError):
        open_sealed(data[:20], "here")


def test_values_that_are_not_finite_are_not_sealed() -> None:
    with pytest.raises(ContractError, match="latents"):
        seal_tensors({"latents": torch.tensor([torch.inf])}, {})
