"""What a forward at 1088x1920 takes, counted on the meta device: nothing is computed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.model import RefinerModel
from magi2.models.refiner.parallelize import ParallelRefiner
from magi2.models.refiner.partition import grid_part, partition_blocks
from magi2.models.refiner.windows import window_grid
from magi2.parallel.collectives import Group, Pending
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from tests.peak_bytes import PeakBytes

pytestmark = pytest.mark.slow

GIB = 2**30
DELIVERY, TEXT = (63, 68, 120), 2000
WEIGHTS = 13_484_611_648
# Two layers, one of either kind: what a layer makes is gone before the next.
CONFIG = RefinerConfig(num_layers=2, mm_layers=(0,))
META = torch.device("meta")


class Silent(Group):
    """A group in which nothing travels."""

    def all_to_all(self, receive, send, receive_rows, send_rows, *, name):
        assert len(send) == sum(send_rows) and len(receive) == sum(receive_rows)
        return Pending()

    def gather_rows(self, rows, lengths, *, name):
        return rows.new_empty(sum(lengths), *rows.shape[1:])


def on_meta(record):
    """A grid or a group with its tensors on the meta device."""
    changes = {
        name: value.to(META) if isinstance(value, torch.Tensor) else tuple(map(on_meta, value))
        for name, value in vars(record).items()
        if isinstance(value, torch.Tensor) or name == "groups"
    }
    return dataclasses.replace(record, **changes)


@pytest.fixture(scope="module")
def whole_grid():
    bands = 10000.0 ** -(torch.arange(16) / 16)
    return window_grid(DELIVERY, CONFIG.window_block, CONFIG.window_radius, bands)


@pytest.fixture
def refiner(monkeypatch):
    # Meta tensors have no fused attention, and no values for the table's check to read.
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", lambda q, k, v: torch.empty_like(q))
    monkeypatch.setattr("magi2.models.refiner.model.rope_table", lambda coords, bands: bands.new_empty(len(coords), 96))
    with META:
        return RefinerModel(CONFIG).to(META).requires_grad_(False)


def peak_of_a_forward(refiner, grid):
    text = torch.empty(1, TEXT, CONFIG.text_in_channels, device=META)
    with PeakBytes() as meter:
        context = refiner.prepare(grid, text)
        refiner(torch.empty(1, 48, *DELIVERY, device=META), context)
    return meter.peak + sum(tensor.nbytes for tensor in vars(grid).values() if isinstance(tensor, torch.Tensor))


@torch.no_grad()
def test_one_rank_refines_the_largest_clip_within_a_card_of_80_gb(refiner, whole_grid):
    peak = peak_of_a_forward(refiner, on_meta(whole_grid))
    assert 20 * GIB < peak < 28 * GIB  # the residual (7.9 GiB), its branch, and q, k, v or their attention
    assert WEIGHTS + peak < 45e9


@torch.no_grad()
def test_a_rank_of_eight_needs_a_few_gib_besides_the_weights(refiner, whole_grid):
    ranks = Silent(tuple(range(8)), 1)
    mesh = Mesh(ParallelLayout(cp=8), 1, META, ranks, ranks, ranks)
    part = grid_part(whole_grid, partition_blocks(whole_grid, 8, 2e4), 1)
    assert peak_of_a_forward(ParallelRefiner(refiner, mesh), on_meta(part)) < 9 * GIB
