"""Batches to learn from are drawn here or in other processes, the same every time."""

from __future__ import annotations

import random
from functools import partial
from itertools import islice

import pytest
import torch
from torch import Tensor

from demo_world.training.decoder import Window, draw_windows
from demo_world.training.drawing import draw_batches, drawing_processes


def draw(rng: random.Random, generator: torch.Generator, number: int) -> tuple[Tensor, float, int]:
    return torch.rand(2, 3, generator=generator), rng.random(), number


def drawn(processes: int, count: int = 4, seed: int = 5) -> list[tuple[Tensor, float, int]]:
    return list(islice(draw_batches(draw, seed=seed, processes=processes), count))


def test_batches_drawn_here_come_from_the_seed() -> None:
    rng, generator = random.Random(5), torch.Generator().manual_seed(5)
    for number, batch in enumerate(drawn(0)):
        expected = draw(rng, generator, number)
        assert torch.equal(batch[0], expected[0]) and batch[1:] == expected[1:]


@pytest.mark.demo_world
def test_processes_draw_different_batches_and_the_same_every_time() -> None:
    batches, again = drawn(2), drawn(2)
    assert [number for _, _, number in batches] == [0, 0, 1, 1]
    assert len({chance for _, chance, _ in batches}) == 4
    for one, other in zip(batches, again, strict=True):
        assert torch.equal(one[0], other[0]) and one[1:] == other[1:]


@pytest.mark.demo_world
def test_windows_arrive_whole_from_another_process_and_every_second_begins_its_clip() -> None:
    windows: list[Window] = list(islice(draw_batches(partial(draw_windows, 4), seed=5, processes=1), 3))
    assert [window.is_first for window in windows] == [True, False, True]
    assert [tuple(window.pixels.shape) for window in windows[:2]] == [(4, 3, 9, 64, 64), (4, 3, 12, 64, 64)]
    assert all(window.latents.shape == (4, 48, 3, 4, 4) for window in windows)


def test_a_processor_that_learns_draws_for_itself() -> None:
    assert drawing_processes(torch.device("cpu")) == 0
    assert drawing_processes(torch.device("cuda")) >= 1
