"""`python -m tools.compile_kernels [--json]`: compiles every kernel for a Hopper accelerator, where there need be none.

Each is compiled as the published model at 272p launches it in bf16, by the functions that launch it; tensors have
shapes and no memory. Prints registers, stack and shared memory of each; 1 where one does not compile, spills registers,
needs more shared memory than there is, has a tile overwritten that is still read, or is launched by none of the calls
here. Triton keeps what it has compiled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, KernelInterface

import magi2.kernels
from magi2.kernels import experts, fp8_experts, fp8_rows, mhc, refiner_attention, routing, rows, sorting
from magi2.kernels.settings import Features, expert_settings

TARGET = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 232_448  # of one program on a Hopper accelerator
HOPPER = Features(SHARED_BYTES, descriptors=True, processors=132, warpgroups=True, fp8=True)
PLAIN = replace(HOPPER, warpgroups=False)

# The published model at 272p, both branches: tokens, and the sizes of its configurations.
TOKENS, STREAMS, SIZE, HEADS, DIM = 30_372, 4, 3072, 24, 128
MOE_HEADS, EXPERTS, TOP_K, MOE_DIM, WIDTH = 12, 256, 6, 256, 1280
REFINER_HEADS, REFINER_KV_HEADS = 32, 8
GROUPS = (28_672, 500, 1_200)


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel; `stack_bytes` beyond 0 are spilled registers or arrays in memory."""

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it keeps its values in registers and fits a processor's shared memory."""
        return self.stack_bytes == 0 and self.shared_bytes <= SHARED_BYTES


def main() -> int:
    """Compile, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    found, failures = compile_all()
    if as_json:
        kernels = [asdict(kernel) for kernel in found]
        print(json.dumps({"triton": triton.__version__, "kernels": kernels, "failures": failures}, indent=1))
    else:
        print(f"Triton {triton.__version__}, {TARGET.backend} {TARGET.arch}")
        for kernel in found:
            print(
                f"{kernel.kernel:52}{kernel.registers:5} registers{kernel.stack_bytes:5} stack{kernel.shared_bytes:8}"
            )
        for failure in failures:
            print(failure, file=sys.stderr)
    return 1 if failures else 0


def compile_all() -> tuple[list[Compiled], list[str]]:
    """The compiled kernels, and what is wrong with them."""
    made: dict[str, Any] = {}
    failures = []
    _stand_in(made)
    for launch in LAUNCHES:
        try:
            launch()
        except Exception as error:  # of whatever kind a version of the compiler raises; the next kernel is tried, too
            failures.append(f"{launch.__name__}: {type(error).__name__}: {error}"[:2000])
    found = [_compiled(name, kernel) for name, kernel in sorted(made.items())]
    failures += [f"{kernel} spills or does not fit" for kernel in found if not kernel.fits]
    failures += [
        f"{name}: {tile} is read twice, and its place is filled again while a product still reads it"
        for name, kernel in sorted(made.items())
        for tile in overwritten_tiles(kernel.asm["ttgir"])
    ]
    failures += [f"{name} is launched by no call of {__name__}" for name in sorted(_launched() - made.keys())]
    return found, failures


def overwritten_tiles(ttgir: str) -> list[str]:
    """The rings of tiles that a product in flight reads and something else has read, too: they have one place too few.

    Triton keeps one more place for a tile that nothing but a product reads.
    """
    views = dict(re.findall(r"(%\w+) = ttg\.memdesc_index (%\w+)", ttgir))
    loaded = {views.get(tile) for tile in re.findall(r"ttg\.local_load (%\w+)", ttgir)} - {None}
    waits = re.findall(r"ttng\.warp_group_dot_wait (.*?) \{pendings = [1-9]", ttgir)
    multiplied = {views.get(value) for wait in waits for value in re.findall(r"%\w+", wait)}
    return sorted(name for name in loaded & multiplied if name)


def _stand_in(made: dict[str, Any]) -> None:
    """Let launches in this process compile for the target and start nothing; each adds what it compiled to `made`.

    Further forms of a kernel have a number behind its name.
    """
    properties = {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": HOPPER.processors}
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: TARGET,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            utils=SimpleNamespace(get_device_properties=lambda device: properties),
        )
    )

    def compiling(kernel: Any, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
            names = (f"{_name(kernel)} {number}" if number > 1 else _name(kernel) for number in count(1))
            next(name for name in names if made.setdefault(name, compiled) is compiled)

        return launch

    KernelInterface.__getitem__ = compiling


def _name(kernel: Any) -> str:
    return f"{kernel.fn.__module__.removeprefix('magi2.kernels.')}.{kernel.fn.__name__}"


def _launched() -> set[str]:
    """Every kernel of the package: its name ends with `_kernel`, the functions they call have other names."""
    names = set()
    for module in pkgutil.iter_modules(magi2.kernels.__path__, "magi2.kernels."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, JITFunction) and value.fn.__name__.endswith("_kernel"):
                names.add(_name(value))
    return names


def _compiled(name: str, kernel: Any) -> Compiled:
    """What `cuobjdump`, which comes with Triton, reads from the machine code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK"))  # type: ignore[index]
    return Compiled(name, registers, stack, kernel.metadata.shared)


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _launch_router_and_sort() -> sorting.Plan:
    x = _tensor(TOKENS, MOE_HEADS, MOE_DIM)
    gate = _tensor(3, MOE_HEADS * EXPERTS, MOE_DIM)
    ids, _ = routing.route(x, gate, _tensor(MOE_HEADS * EXPERTS, dtype=torch.float32), TOP_K, True, 4.9)
    settings = expert_settings(HOPPER, MOE_DIM, WIDTH, 2)
    return sorting.sort_routes(ids, EXPERTS, settings.block_rows)


def _launch_experts() -> None:
    x, plan = _tensor(TOKENS, MOE_HEADS, MOE_DIM), _launch_router_and_sort()
    gate, up = (_tensor(MOE_HEADS * EXPERTS, MOE_DIM, WIDTH) for _ in range(2))
    w_down = _tensor(MOE_HEADS * EXPERTS, WIDTH, MOE_DIM)
    weights = _tensor(MOE_HEADS, TOKENS, TOP_K, dtype=torch.float32)
    output = _tensor(TOKENS * MOE_HEADS * TOP_K, MOE_DIM)
    for available in (PLAIN, HOPPER):
        settings = expert_settings(available, MOE_DIM, WIDTH, 2)
        gate_up = experts.lay_out(gate, up, settings)
        experts.expert_rows(x, weights, plan, gate_up, w_down, available, settings, output)
    experts.combine(output, plan, torch.empty_like(x))


def _launch_fp8_experts() -> None:
    def scaled(*shape: int) -> fp8_experts.Scaled:
        return fp8_experts.Scaled(_tensor(*shape, dtype=torch.float8_e4m3fn), _tensor(*shape[:-1], dtype=torch.float32))

    plan, number = _launch_router_and_sort(), MOE_HEADS * EXPERTS
    parts = fp8_experts.ExpertWeights(
        scaled(number, WIDTH, MOE_DIM), scaled(number, WIDTH, MOE_DIM), scaled(number, MOE_DIM, WIDTH)
    )
    weights = _tensor(MOE_HEADS, TOKENS, TOP_K, dtype=torch.float32)
    x = fp8_experts.Scaled(*fp8_rows.quantise_rows(_tensor(TOKENS, MOE_HEADS, MOE_DIM)))
    output = _tensor(TOKENS * MOE_HEADS * TOP_K, MOE_DIM)
    for available in (PLAIN, HOPPER):
        settings = fp8_experts.fp8_expert_settings(available, MOE_DIM, WIDTH)
        fp8_experts.fp8_expert_rows(x, weights, plan, parts, available, settings, output)
    experts.combine(output, plan, torch.empty_like(x.values), _tensor(TOKENS, dtype=torch.float32))
    fp8_rows.swiglu7_e4m3(_tensor(TOKENS, 2 * WIDTH))
    fp8_rows.sum_rows_(*(_tensor(TOKENS, SIZE) for _ in range(3)))


def _launch_streams() -> None:
    streams, lanes = _tensor(TOKENS, STREAMS, SIZE), _tensor(32, dtype=torch.float32)
    phi = mhc.PhiWeights(_tensor(3, STREAMS * SIZE, 64), lanes, lanes)
    table = mhc.coefficients(streams, phi, GROUPS, HOPPER)
    for quantised in (None, (_tensor(TOKENS, SIZE, dtype=torch.float8_e4m3fn), _tensor(TOKENS, dtype=torch.float32))):
        mhc.half_input(streams, table, _tensor(3 * SIZE), GROUPS, quantised)
    mhc.update(streams, table, _tensor(TOKENS, SIZE))


def _launch_rows() -> None:
    x = _tensor(TOKENS, 3 * SIZE)
    rope = _tensor(TOKENS, 6 * (DIM // 8), dtype=torch.float32)
    places = _tensor(TOKENS, dtype=torch.int64)
    rows.rms_norm_rows(_tensor(TOKENS, SIZE), _tensor(SIZE), torch.bfloat16)
    residual = _tensor(TOKENS, SIZE, dtype=torch.float32)
    rows.add_norm_rows(residual, _tensor(TOKENS, SIZE), _tensor(SIZE), residual)
    rows.add_rows_(residual, _tensor(TOKENS, SIZE))
    rows.swiglu7_rows(_tensor(TOKENS, 2 * WIDTH), _tensor(TOKENS, WIDTH))
    q, _, _ = rows.packed_heads(x, _tensor(3 * DIM), _tensor(3 * DIM), rope, places, GROUPS, (HEADS, HEADS))
    log_sums, sinks = _tensor(HEADS, TOKENS, dtype=torch.float32), _tensor(HEADS, dtype=torch.float32)
    for scales in (None, _tensor(TOKENS, dtype=torch.float32)):
        rows.gate_heads(q, _tensor(TOKENS, HEADS), places, (log_sums, sinks), scales)
    rows.fold_sink_(q, log_sums, sinks)


def _launch_windows() -> None:
    q, k = _tensor(TOKENS, REFINER_HEADS, DIM), _tensor(TOKENS, REFINER_KV_HEADS, DIM)
    plan = refiner_attention.WindowPlan(*(_tensor(*shape, dtype=torch.int32) for shape in ((600, 5), (9000,), (9000,))))
    for available in (PLAIN, HOPPER):
        refiner_attention.window_attention(q, k, k, plan, available)


LAUNCHES = (_launch_experts, _launch_fp8_experts, _launch_streams, _launch_rows, _launch_windows)

if __name__ == "__main__":
    sys.exit(main())
