"""Nothing that a store holds changes unseen: a sample of `make mutate`, through the product's own readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from benchmarks.mutations.changes import BYTES, JSON
from benchmarks.mutations.subjects import Sample
from benchmarks.mutations.trial import KINDS, Trial

SAMPLE = 400


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    trial = Trial(Sample(tmp_path_factory.mktemp("mutated")), seed=2)
    for _ in range(SAMPLE):
        trial.mutate()
    yield trial


@pytest.mark.slow
def test_no_mutation_is_accepted_unseen(trial: Trial) -> None:
    counts = trial.counts()
    assert trial.accepted == []
    assert counts["tried"] == SAMPLE and set(counts["by_file"]) == set(KINDS)
    assert counts["verify"]["asked"] == counts["verify"]["noticed"] > 0


@pytest.mark.slow
def test_a_forgery_that_rewrites_the_digest_is_what_remains(trial: Trial) -> None:
    assert trial.forge(5) == {"tried": 5, "accepted": 5}


@pytest.mark.parametrize("how", [*BYTES, *JSON])
def test_a_change_changes_bytes_and_is_the_same_for_the_same_seed(how: str) -> None:
    data = (json.dumps({"a": {"b": [1, "two", True, None]}, "c": 2.5}, indent=1) + "\n").encode()
    change = {**BYTES, **JSON}[how]
    changed = [change(data, Random(seed)) for seed in range(50)]
    assert changed == [change(data, Random(seed)) for seed in range(50)]
    assert sum(each != data for each in changed) > 40
