"""Every kernel compiles for a Hopper accelerator under the installed Triton, here where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.compile_kernels import SHARED_BYTES, Compiled, overwritten_tiles

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_launched_kernel_compiles_keeps_its_registers_and_fits_shared_memory() -> None:
    """Some 15 CPU-s where Triton's cache does not have the kernels of these sources and this version yet, else 3."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.compile_kernels", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert answer["failures"] == []
    assert done.returncode == 0
    assert {
        "experts_specialised._experts_kernel",
        "fp8_experts_specialised._fp8_experts_kernel",
        "refiner_attention_specialised._window_kernel",
    } <= {kernel["kernel"] for kernel in answer["kernels"]}


def test_a_kernel_that_spills_or_is_too_large_does_not_fit() -> None:
    assert Compiled("k", 255, 0, SHARED_BYTES).fits
    assert not Compiled("k", 255, 8, SHARED_BYTES).fits
    assert not Compiled("k", 168, 0, SHARED_BYTES + 1).fits


def test_a_tile_whose_place_is_filled_while_a_product_reads_it_is_found() -> None:
    """As Triton 3.6 and 3.7 make it of a tile that is multiplied and summed: two places, a product in flight."""
    step = """
      %tile = ttg.memdesc_index %ring[%i] : !ttg.memdesc<2x128x128xbf16> -> !ttg.memdesc<128x128xbf16>
      %values = ttg.local_load %tile : !ttg.memdesc<128x128xbf16> -> tensor<128x128xbf16>
      %sum = ttng.warp_group_dot %tile, %other, %acc {isAsync = true} : tensor<128x64xf32>
      %done:2 = ttng.warp_group_dot_wait %sum, %tile, %other {pendings = 1 : i32} : tensor<128x64xf32>
    """
    assert overwritten_tiles(step) == ["%ring"]
    assert overwritten_tiles(step.replace("pendings = 1", "pendings = 0")) == []  # the product is done
    assert overwritten_tiles(step.replace("local_load %tile", "local_load %bias")) == []  # read by products alone
