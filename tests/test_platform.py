"""Every platform is simulated here; only the CPU is really there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import magi2
from magi2 import platform
from magi2.errors import ConfigError
from magi2.parallel.mesh import BACKENDS

PACKAGE = Path(magi2.__file__).parent
# What only the platform module may ask or name: a check elsewhere silently picks the CPU on MUSA.
PRIVATE_ATTRIBUTES = (
    "torch.cuda.is_available",
    "torch.cuda.get_device_capability",
    "torch.cuda.get_device_name",
    "torch.version.cuda",
    "torch.version.musa",
    "torch.version.hip",
    "torch.musa",
)
PRIVATE_MODULES = {"torchada", "torch_musa"}
PRIVATE_STRINGS = {"nccl", "mccl"}


class FakeRuntime(ModuleType):
    """Stands for `torch.musa` or `torch.cuda`; remembers what was called."""

    def __init__(self, name: str, available: bool = True) -> None:
        super().__init__(name)
        self.calls: list[str] = []
        self.is_available = lambda: available
        self.synchronize = lambda: self.calls.append("synchronize")
        self.set_device = lambda index: self.calls.append(f"set_device {index}")
        self.reset_peak_memory_stats = lambda: self.calls.append("reset_peak")
        self.empty_cache = lambda: self.calls.append("empty_cache")
        self.memory_allocated = lambda: 3
        self.max_memory_allocated = lambda: 5
        self.mem_get_info = lambda: (60, 80)
        self.device_count = lambda: 8
        self.get_device_name = lambda: f"a card of {name}"
        self.get_device_capability = lambda: (9, 0)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with no accelerator, whatever this one has."""
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "musa", None, raising=False)
    return monkeypatch


def pretend_cuda(patch: pytest.MonkeyPatch, *, available: bool = True) -> FakeRuntime:
    runtime = FakeRuntime("cuda", available)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch, "cuda", runtime)
    return runtime


def pretend_musa(patch: pytest.MonkeyPatch, *, available: bool = True) -> FakeRuntime:
    runtime = FakeRuntime("musa", available)
    patch.setattr(torch.version, "musa", "4.3.0", raising=False)
    patch.setattr(torch, "musa", runtime, raising=False)
    return runtime


@pytest.mark.parametrize(("capability", "takes"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((12, 0), True)])
def test_cards_without_fp8_products_are_refused_by_name_with_what_to_use(
    capability: tuple[int, int], takes: bool, bare: pytest.MonkeyPatch
) -> None:
    assert platform.fp8_refusal(accelerator=platform.ACCELERATORS["cpu"]) is None
    pretend_cuda(bare).get_device_capability = lambda: capability
    refusal = platform.fp8_refusal(accelerator=platform.ACCELERATORS["cuda"])
    if takes:
        assert refusal is None
    else:
        assert refusal is not None and "a card of cuda has compute capability 8." in refusal
        assert "compute.weights=bf16" in refusal
    assert "no kernels on MUSA" in str(platform.fp8_refusal(accelerator=platform.ACCELERATORS["musa"]))


def test_a_machine_without_accelerator_is_cpu_with_gloo(bare: pytest.MonkeyPatch) -> None:
    found = platform.current()
    assert (found.name, found.device_type, found.collective_backend) == ("cpu", "cpu", "gloo")
    assert platform.device(3) == torch.device("cpu")


def test_cuda_is_found_by_build_and_availability(bare: pytest.MonkeyPatch) -> None:
    pretend_cuda(bare)
    found = platform.current()
    assert (found.name, found.device_type, found.collective_backend) == ("cuda", "cuda", "nccl")
    assert platform.device(2) == torch.device("cuda", 2)


def test_cuda_build_without_a_card_is_cpu(bare: pytest.MonkeyPatch) -> None:
    pretend_cuda(bare, available=False)
    assert platform.current().name == "cpu"


def test_musa_is_found_although_cuda_says_no(bare: pytest.MonkeyPatch) -> None:
    pretend_musa(bare)
    found = platform.current()
    assert (found.name, found.device_type, found.collective_backend) == ("musa", "musa", "mccl")


def test_musa_comes_before_cuda(bare: pytest.MonkeyPatch) -> None:
    pretend_cuda(bare)
    pretend_musa(bare)
    assert platform.current().name == "musa"


def test_musa_build_without_a_card_is_cpu(bare: pytest.MonkeyPatch) -> None:
    pretend_musa(bare, available=False)
    assert platform.current().name == "cpu"


def test_torch_musa_is_imported_to_find_musa(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch_musa.py").write_text(
        "import torch, types\n"
        "torch.version.musa = '4.3.0'\n"
        "torch.musa = types.SimpleNamespace(is_available=lambda: True)\n"
    )
    bare.syspath_prepend(tmp_path)
    bare.setattr(torch, "musa", None, raising=False)
    bare.delattr(torch, "musa")
    try:
        assert platform.current().name == "musa"
    finally:
        sys.modules.pop("torch_musa", None)
        del torch.musa


def test_an_override_wins_over_what_is_found(bare: pytest.MonkeyPatch) -> None:
    pretend_cuda(bare)
    assert platform.current("cpu").name == "cpu"
    assert platform.device(1, accelerator=platform.current("cpu")) == torch.device("cpu")


def test_an_unavailable_override_is_refused(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'cuda' is not available"):
        platform.current("cuda")


def test_an_unknown_override_is_refused_with_the_choices(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'tpu', must be one of cuda, musa, cpu"):
        platform.current("tpu")


@pytest.mark.parametrize("pretend", [pretend_cuda, pretend_musa])
def test_the_runtime_of_the_platform_is_used(bare: pytest.MonkeyPatch, pretend: object) -> None:
    runtime = pretend(bare)
    platform.synchronize()
    platform.reset_peak_memory()
    platform.empty_cache()
    assert runtime.calls == ["synchronize", "reset_peak", "empty_cache"]
    assert platform.memory_stats() == (3, 5, 80)


@pytest.mark.parametrize(("pretend", "count"), [(pretend_cuda, 8), (pretend_musa, 8), (lambda patch: None, 1)])
def test_devices_are_counted_by_the_runtime_of_the_platform(
    bare: pytest.MonkeyPatch, pretend: object, count: int
) -> None:
    pretend(bare)
    assert platform.device_count() == count


@pytest.mark.parametrize("pretend", [pretend_cuda, pretend_musa])
def test_a_card_is_called_what_the_runtime_of_the_platform_calls_it(bare: pytest.MonkeyPatch, pretend: object) -> None:
    assert platform.device_name() == os.uname().machine
    assert platform.device_name(accelerator=platform.ACCELERATORS[pretend(bare).__name__]).startswith("a card of")


def test_the_simulated_runtime_has_no_function_that_torch_lacks() -> None:
    assert [name for name in vars(FakeRuntime("fake")) if name[0] != "_" and not hasattr(torch.cuda, name)] == ["calls"]


@pytest.mark.parametrize(
    ("pretend", "backend", "runs_triton"),
    [(pretend_cuda, "nccl", True), (pretend_musa, "mccl", True), (lambda patch: None, "gloo", False)],
)
def test_each_platform_names_its_backend_and_says_whether_triton_runs(
    bare: pytest.MonkeyPatch, pretend: object, backend: str, runs_triton: bool
) -> None:
    pretend(bare)
    found = platform.current()
    assert found.collective_backend == backend and backend in BACKENDS
    assert found.triton is runs_triton


def test_cpu_memory_is_that_of_the_process(bare: pytest.MonkeyPatch) -> None:
    platform.synchronize()
    platform.reset_peak_memory()
    platform.empty_cache()
    stats = platform.memory_stats()
    assert 0 < stats.allocated <= stats.peak < stats.total


def test_musa_activation_imports_torchada_and_selects_the_device(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime = pretend_musa(bare)
    (tmp_path / "torchada.py").write_text("")
    bare.syspath_prepend(tmp_path)
    bare.setattr(platform, "device", lambda index, accelerator: (accelerator.device_type, index))
    try:
        assert platform.activate(index=5) == ("musa", 5)
        assert "torchada" in sys.modules
    finally:
        sys.modules.pop("torchada", None)
    assert runtime.calls == ["set_device 5"]


def test_musa_activation_without_torchada_says_what_to_install(bare: pytest.MonkeyPatch) -> None:
    pretend_musa(bare)
    bare.setitem(sys.modules, "torchada", None)
    with pytest.raises(ConfigError, match=r"torchada.*magi2\[musa\]"):
        platform.activate()


@pytest.mark.parametrize("pretend", [pretend_cuda, lambda patch: None])
def test_activation_elsewhere_never_imports_torchada(bare: pytest.MonkeyPatch, pretend: object) -> None:
    pretend(bare)
    bare.setitem(sys.modules, "torchada", None)  # importing it would now raise
    platform.activate(index=0)


@pytest.mark.slow
def test_musa_device_strings_are_native() -> None:
    code = (
        "import torch, types; torch.utils.rename_privateuse1_backend('musa');"
        "torch.version.musa = '4.3.0'; torch.musa = types.SimpleNamespace(is_available=lambda: True);"
        "from magi2 import platform; d = platform.device(1); assert (d.type, d.index) == ('musa', 1), d"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_import_and_activation_on_a_cpu_leave_torchada_alone() -> None:
    code = (
        "import sys; from magi2 import platform; platform.activate(platform.current('cpu'));"
        "assert not {'torchada', 'torch_musa'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_neither_a_mode_nor_a_transformer_waits_for_torch_s_compiler() -> None:
    """Its import would take every process of a stage two seconds."""
    code = """
import sys, torch
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.models.preview.model import PreviewModel
from magi2.models.refiner.model import RefinerModel
from magi2.platform import set_deterministic

set_deterministic(False), set_deterministic(True)
architectures = load_profile("tiny", Settings().configs).architectures
with torch.device("meta"):
    PreviewModel(architectures.preview), RefinerModel(architectures.refiner)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300)
    assert not {"torch._dynamo", "torch._inductor"} & set(done.stdout.split())


def test_deterministic_mode_switches_on_and_off_without_seeding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.get_rng_state()
    try:
        platform.set_deterministic(True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert platform.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        platform.set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def test_tf32_is_off_on_both_vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    mudnn = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends, "mudnn", mudnn, raising=False)
    platform.disable_tf32()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert not mudnn.allow_tf32


def questions_in(source: str) -> list[str]:
    """What a source text asks or names that only the platform module may."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PRIVATE_ATTRIBUTES:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in PRIVATE_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PRIVATE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Constant) and node.value in PRIVATE_STRINGS:
            found.append(str(node.value))
    return found


def test_the_source_scan_sees_what_it_should() -> None:
    source = "import torchada\nif torch.cuda.is_available() or torch.version.musa: init('nccl')"
    assert sorted(questions_in(source)) == ["nccl", "torch.cuda.is_available", "torch.version.musa", "torchada"]


def test_no_other_module_asks_what_accelerator_this_is() -> None:
    asked = {
        str(path.relative_to(PACKAGE)): questions
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "platform.py" and (questions := questions_in(path.read_text()))
    }
    # The mesh refuses backends that its collectives were not written for.
    assert asked == {"parallel/mesh.py": ["nccl", "mccl"]}
