"""Where rows lie on their way between ranks, seen from one process."""

from __future__ import annotations

import pytest
import torch

from magi2.errors import ConfigError
from magi2.parallel.buffers import Buffers
from magi2.parallel.collectives import Group, even_split, starts
from magi2.parallel.expert_exchange import Places
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.parallel.meter import Meter

CPU = torch.device("cpu")


@pytest.mark.parametrize(("heads", "size"), [(12, 1), (12, 2), (12, 4), (12, 8), (12, 24), (3, 2), (2, 4)])
def test_every_head_goes_to_the_ranks_that_have_a_part_of_it(heads: int, size: int) -> None:
    places, tokens = Places(heads, size), torch.arange(heads).expand(5, heads).unsqueeze(2).contiguous()
    outbox = torch.full((size, 5, places.count, 1), -1)
    places.lay_out(tokens, outbox)
    for rank in range(size):
        halves = range(rank * places.halves, (rank + 1) * places.halves)
        wanted = sorted({half // 2 for half in halves})
        assert outbox[rank, 0, :, 0].tolist() == wanted and bool((outbox[rank] == outbox[rank, :1]).all())


@pytest.mark.parametrize(("heads", "size"), [(12, 4), (12, 8), (12, 24), (3, 2)])
def test_results_of_half_heads_are_added_at_home(heads: int, size: int) -> None:
    """Each rank answers the number of halves that it has, so every head adds up to two."""
    places = Places(heads, size)
    inbox = torch.zeros(size, 4, places.count, 3)
    for rank in range(size):
        for half in range(rank * places.halves, (rank + 1) * places.halves):
            inbox[rank, :, half // 2 - rank * places.halves // 2] += 1
    assert torch.equal(places.add_up(inbox), torch.full((4, heads, 3), 2.0))


def test_pieces_are_neighbours_and_differ_by_one_at_most() -> None:
    assert even_split(10, 4) == (3, 3, 2, 2) and starts((3, 3, 2, 2)) == (0, 3, 6, 8)
    assert sum(even_split(209, 8)) == 209 and set(even_split(209, 8)) == {26, 27}


def test_buffers_are_taken_once_and_grow() -> None:
    buffers, like = Buffers(), torch.zeros(1)
    first = buffers.take("a", (4, 2), like)
    assert buffers.take("a", (2, 3), like).data_ptr() == first.data_ptr()
    assert buffers.take("b", (4, 2), like).data_ptr() != first.data_ptr()
    assert buffers.take("a", (9, 2), like).shape == (9, 2)
    assert buffers.take("a", (4, 2), like.bfloat16()).dtype == torch.bfloat16


def test_a_layout_of_more_ranks_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layout sp4\.cfg2\.ep4 needs 8 ranks, there are 1"):
        Mesh.create(ParallelLayout(4, 2, 4), CPU)


def test_one_rank_exchanges_nothing() -> None:
    mesh, rows = Mesh.create(ParallelLayout(), CPU), torch.randn(3, 2)
    assert mesh.branch is None and mesh.world is mesh.cp is mesh.ep
    received = torch.empty_like(rows)
    mesh.cp.all_to_all(received, rows, [3], [3], name="rows").wait()
    assert torch.equal(received, rows) and mesh.world.gather_rows(rows, [3], name="rows") is rows
    assert not mesh.meter.sent_bytes


@pytest.mark.parametrize(("layout", "branches"), [("sp2.cfg2.ep4", [0, 0, 1, 1]), ("sp4", [None] * 4)])
def test_ranks_know_their_branch(layout: str, branches: list[int | None]) -> None:
    parsed, group = ParallelLayout.parse(layout), Group((0,), 0)
    assert [Mesh(parsed, rank, CPU, group, group, group).branch for rank in range(4)] == branches


def test_waiting_is_measured_between_start_and_reading() -> None:
    meter = Meter()
    with meter.exposed():
        pass
    assert meter.exposed_s() == 0
    meter.count("rows", 5)
    meter.start()
    with meter.exposed():
        pass
    first = meter.exposed_s()
    with meter.exposed():
        pass
    assert 0 < first == meter.exposed_s() and not meter.sent_bytes
