"""`magi2 plan --budget`: what a batch would cost, by what its stages took before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from tests.cli.cli_said import Magi2


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A batch of two clips; before, preview took ten seconds on two accelerators."""
    (tmp_path / "batch.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    store = LocalStore(tmp_path / "store")
    recipe = Recipe(stage="preview", version=1, seed=1, config={"steps": 8})
    with store.stage_folder("preview", recipe.key) as folder:
        (folder / "latents").write_bytes(b"latents")
        report = {"profile": "tiny-preview", "layout": "sp2.cfg1.ep2"}
        draft = ManifestDraft(recipe, timings={"make_s": 10.0}, report=report)
        store.publish(draft, {"latents": folder / "latents"})
    return ["plan", "batch.jsonl", "--profile", "tiny-preview"]


def test_budget_needs_a_price(magi2: Magi2, arguments: list[str]) -> None:
    said = magi2(*arguments, "--budget", "5")
    assert said.code == 2 and "MAGI2_PRICE_PER_ACCELERATOR_HOUR" in said.err


def test_cost_counts_every_rank_and_is_held_against_the_budget(
    magi2: Magi2, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_PRICE_PER_ACCELERATOR_HOUR", "900")
    monkeypatch.setenv("MAGI2_CURRENCY", "EUR")
    content = json.loads(magi2(*arguments, "--budget", "9", "--json").out)
    assert (content["accelerator_seconds"], content["cost"], content["budget"]) == (40.0, 10.0, 9.0)
    assert "about 10.00 EUR: more than the budget" in magi2(*arguments, "--budget", "9").out
    assert magi2(*arguments, "--budget", "11").out.splitlines()[-1] == "about 10.00 EUR"


def test_budget_that_cannot_be_spent_is_refused(
    magi2: Magi2, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_PRICE_PER_ACCELERATOR_HOUR", "900")
    assert "must be more than 0" in magi2(*arguments, "--budget", "0").err
