"""Listings of a part of a folder, and what is asked of a server at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from magi2.artifacts import survey as survey_module
from magi2.artifacts.ahead import in_order
from magi2.artifacts.blobs import Blob
from magi2.artifacts.survey import files_of


@pytest.mark.parametrize("wanted_of_a_hundred", [0, 3, 50, 100])
@pytest.mark.parametrize("page", [1, 3, 7, 1000])
def test_the_files_of_some_folders_are_listed_page_by_page(
    monkeypatch: pytest.MonkeyPatch, page: int, wanted_of_a_hundred: int
) -> None:
    chance = random.Random(page)
    folders = [f"a/{number:03}" for number in range(100)]
    names = sorted(f"{each}/{index}" for each in folders[::2] for index in range(chance.randint(1, 9)))
    pages: list[str] = []

    def listed(within: str, after: str) -> Iterator[Blob]:
        pages.append(after)
        return (Blob(name, 0.0) for name in names if name.startswith(f"{within}/") and name > after)

    monkeypatch.setattr(survey_module, "LISTED_AT_ONCE", page)
    wanted = sorted(chance.sample(folders, wanted_of_a_hundred))
    found = [blob.name for blob in files_of(wanted, listed, "a")]
    assert found == [name for name in names if name.rpartition("/")[0] in wanted]
    assert len(pages) <= 2 * len(wanted)
    assert page < len(names) or len(pages) == bool(wanted)


def test_answers_come_in_order_and_few_are_asked_for_before_they_are_taken() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    answers = in_order(lambda number: number * 2, items(), threads=4)
    assert [next(answers) for _ in range(10)] == list(range(0, 20, 2))
    assert taken <= 10 + 2 * 4
    answers.close()
    assert taken <= 10 + 2 * 4


def test_an_error_ends_the_asking_and_the_threads() -> None:
    def ask(number: int) -> int:
        if number == 3:
            raise OSError("away")
        return number

    answers = in_order(ask, range(100), threads=2)
    assert [next(answers) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="away"):
        next(answers)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("store")]
