"""Cost: accelerator-seconds of every rank and attempt at the deployment's price."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.catalog import NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.cost import BatchCost
from magi2.config.price import Price, price_for_budget
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.types import Clip, StageName

EURO = Price(3.6, "EUR")


def test_price_is_the_deployments() -> None:
    variables = {"MAGI2_PRICE_PER_ACCELERATOR_HOUR": "3.6", "MAGI2_CURRENCY": "EUR"}
    assert Price.of(Settings.from_environment(variables)) == EURO
    assert Price.of(Settings.from_environment({})) is None


@pytest.mark.parametrize("text", ["cheap", "-1", "inf", "nan"])
def test_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="MAGI2_PRICE_PER_ACCELERATOR_HOUR"):
        Settings.from_environment({"MAGI2_PRICE_PER_ACCELERATOR_HOUR": text})


def test_budget_without_a_price_is_refused() -> None:
    for settings in (Settings(), Settings(price_per_accelerator_hour=0.0)):
        with pytest.raises(ConfigError, match="needs a price"):
            price_for_budget(settings)


def test_amounts_are_readable() -> None:
    assert [EURO.text(amount) for amount in (0.0, 0.00123, 1234.5)] == ["0.00 EUR", "0.0012 EUR", "1,234.50 EUR"]


@pytest.mark.parametrize("price", [EURO, None])
def test_cost_is_told_by_clip_stage_and_batch(tmp_path: Path, price: Price | None) -> None:
    catalog = open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    clips = [Clip(f"prompt {number}", number, "1080p", "a" * 64) for number in range(2)]
    catalog.batches.create(NewBatch(batch_id="b", name="b", source="s", clips_total=2), {"a" * 64: {}})
    catalog.clips.add("b", [PlannedClip(clip, 0) for clip in clips])
    one, two = (clip.clip_id for clip in clips)
    for clip_id, stage, seconds in (
        (one, StageName.PREVIEW, 800.0),
        (one, StageName.ENCODE, 10.0),
        (two, StageName.PREVIEW, 190.0),
    ):
        run = Run(clip_id=clip_id, stage=stage, state=RunState.MADE, accelerator_seconds=seconds)
        catalog.runs.finish("b", [run])
    cost = BatchCost.from_seconds(catalog.runs.accelerator_seconds("b"), price)
    assert (cost.accelerator_seconds, list(cost.stage_seconds)) == (1000.0, [StageName.ENCODE, StageName.PREVIEW])
    figures = [cost.total, cost.of_clip(one), cost.of_clip("other"), cost.of_stage(StageName.PREVIEW)]
    assert figures == ([pytest.approx(value) for value in (1.0, 0.81, 0.0, 0.99)] if price else [None] * 4)
