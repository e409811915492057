"""Tensors in safetensors files: the header is read without torch, values are checked before they reach a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from magi2.artifacts.recipe import canonical_json
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.files import disk_errors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SUFFIX = ".safetensors"
# The writer keeps several metadata entries in a random order; one entry keeps equal tensors equal byte for byte.
_METADATA_ENTRY = "metadata"
_SEAL = "sha256"
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's dtype, by torch's name for it ("float32", "bfloat16"), and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def read_specs(path: Path) -> dict[str, TensorSpec]:
    """The spec of every tensor in a safetensors file, by name; reads the header alone and needs no torch.

    Raises: CorruptedArtifactError when the file is missing, truncated or no safetensors file; InfrastructureError when
    the disk fails to give it.
    """
    with _reading(path), safe_open(path, framework="numpy") as handle:
        slices = {name: handle.get_slice(name) for name in sorted(handle.keys())}
        return {name: _spec(item.get_dtype(), item.get_shape()) for name, item in slices.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, finite: bool = True) -> dict[str, TensorSpec]:
    """Write `tensors` to a safetensors file, equal values to equal bytes, and give back their specs by name.

    Raises: ContractError naming the tensor when `finite` and one holds NaN or infinity; nothing is written then.
    InfrastructureError when the disk does not take the file.
    """
    from safetensors.torch import save_file

    stored = {}
    for name, tensor in tensors.items():
        if finite:
            _check_finite(tensor, f"{path.name}: {name}")
        stored[name] = _own_copy(tensor)
    with disk_errors(path):
        save_file(stored, path)
    return read_specs(path)


def load_tensors(
    path: Path, *, specs: Mapping[str, TensorSpec], device: torch.device | str = "cpu", finite: bool = True
) -> dict[str, Tensor]:
    """The tensors of a safetensors file on `device`, after names, dtypes, shapes and values were checked on the host.

    Raises: ContractError when the file holds other tensors than `specs` says, or, when `finite`, a value that is NaN
    or infinite; as `read_specs` does when the file cannot be read.
    """
    _check_specs(read_specs(path), specs, path)
    tensors = {}
    with _reading(path), safe_open(path, framework="pt", device="cpu") as handle:
        for name in specs:
            # The handle's tensors are views of the file; copies outlive its removal.
            tensors[name] = handle.get_tensor(name).clone()
    if finite:
        for name, tensor in tensors.items():
            _check_finite(tensor, f"{path}: {name}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def seal_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file in memory that carries the digest of its tensors and metadata; `open_sealed` reads it.

    Raises: ContractError naming the tensor that holds NaN or infinity.
    """
    from safetensors.torch import save

    stored = {name: _own_copy(tensor) for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        _check_finite(tensor, name)
    sealed = {**metadata, _SEAL: _seal(stored, metadata)}
    return save(stored, metadata={_METADATA_ENTRY: canonical_json(sealed, "metadata")})


def open_sealed(data: bytes, place: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the host, and the metadata given to `seal_tensors`.

    Raises: CorruptedArtifactError naming `place` when the content is damaged or was not sealed.
    """
    from safetensors.torch import load

    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = json.loads(header["__metadata__"][_METADATA_ENTRY])
        seal = metadata.pop(_SEAL)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptedArtifactError(f"{place}: no sealed tensors: {error}") from error
    if seal != _seal(tensors, metadata):
        raise CorruptedArtifactError(f"{place}: its SHA-256 is not {seal}")
    return tensors, metadata


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell a damaged file, which is made anew, from a disk that does not give it."""
    try:
        with disk_errors(path, CorruptedArtifactError):
            yield
    except (SafetensorError, KeyError) as error:
        raise CorruptedArtifactError(f"{path}: not a readable safetensors file: {error}") from error


def _own_copy(tensor: Tensor) -> Tensor:
    """A copy on the host: views of one storage are refused by the writer."""
    import torch

    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata and every tensor's name, dtype, shape and bytes."""
    import torch

    digest = sha256(canonical_json(dict(metadata), "metadata").encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _spec(code: str, shape: list[int]) -> TensorSpec:
    return TensorSpec(dtype=_DTYPES[code], shape=tuple(shape))


def _check_specs(found: Mapping[str, TensorSpec], specs: Mapping[str, TensorSpec], path: Path) -> None:
    missing, unexpected = sorted(specs.keys() - found.keys()), sorted(found.keys() - specs.keys())
    if missing:
        raise ContractError(f"{path}: tensor {missing[0]!r} is missing; the file has {sorted(found)}")
    if unexpected:
        raise ContractError(f"{path}: tensor {unexpected[0]!r} is not expected; expected are {sorted(specs)}")
    for name, spec in specs.items():
        if found[name] != spec:
            raise ContractError(f"{path}: {name}: is {found[name]}, expected {spec}")


def _check_finite(tensor: Tensor, place: str) -> None:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    values = tensor.float() if tensor.element_size() == 1 else tensor  # 8-bit floats have no isfinite
    count = tensor.numel() - int(torch.isfinite(values).sum())
    if count:
        raise ContractError(f"{place}: {count} of {tensor.numel()} values are NaN or infinite")
