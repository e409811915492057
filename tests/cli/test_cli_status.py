"""`magi2 status`: once, live, for scripts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from magi2.catalog import BatchState, Catalog, NewBatch, PlannedClip, open_catalog
from magi2.catalog.records import now
from magi2.catalog.shards import ShardPosition
from magi2.cli import status
from magi2.types import Clip, StageName
from tests.cli.cli_said import Magi2

PROFILE = "a" * 64
CLIPS = [Clip(f"prompt {n}", n, "1080p", PROFILE) for n in range(3)]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """The catalog of the command's store, with a batch whose preview stage is at step 40 of 100."""
    catalog = open_catalog(f"sqlite:///{tmp_path}/store/catalog.sqlite")
    batch = NewBatch(batch_id="night", name="Night\x1b[2J [red]\nrun", source="night.jsonl", clips_total=3)
    catalog.batches.create(batch, {PROFILE: {"refiner": {"steps": 5}}})
    catalog.clips.add("night", [PlannedClip(clip, 0) for clip in CLIPS])
    catalog.runs.start("night", StageName.PREVIEW, [clip.clip_id for clip in CLIPS], attempt=1, shard=0)
    position = ShardPosition(
        shard=0,
        stage=StageName.PREVIEW,
        attempt=1,
        clip_id=CLIPS[0].clip_id,
        step=40,
        steps=100,
        steps_per_second=0.25,
        at=now(),
    )
    catalog.shards.at_step("night", position)
    return catalog


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is told, as long as the test runs."""
    screen = io.StringIO()
    monkeypatch.setattr(status, "results", Console(file=screen, force_terminal=True, width=160))
    return screen


def test_a_batch_is_shown_by_shard(magi2: Magi2, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_PRICE_PER_ACCELERATOR_HOUR", "2.5")
    said = magi2("status", "night")
    head, clips, columns, shard = said.out.splitlines()
    assert (said.code, head) == (0, "night Night\ufffd[2J [red] run: running")
    assert clips == "3 running; 0 accelerator-seconds; 0.00 USD"
    assert columns.split("  ")[0] == "shard"
    assert shard.split() == f"0 1080p preview 0/3 {CLIPS[0].short_id} 40/100 0.25/s 0.00 USD".split()


def test_without_a_batch_the_newest_are_listed(magi2: Magi2, catalog: Catalog) -> None:
    lines = magi2("status").out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("night  Night\ufffd[2J [red] run")
    assert "running" in lines[1] and "0/3" in lines[1]


def test_json_is_one_object(magi2: Magi2, catalog: Catalog) -> None:
    content = json.loads(magi2("status", "night", "--json").out)
    assert (content["state"], content["clips"]["running"], content["cost"]) == ("running", 3, None)
    assert (content["shards"][0]["step"], content["shards"][0]["stage"]) == (40, "preview")
    assert [each["batch_id"] for each in json.loads(magi2("status", "--json").out)["batches"]] == ["night"]


def test_an_unknown_batch_is_one_line_and_exit_code_two(magi2: Magi2, catalog: Catalog) -> None:
    said = magi2("status", "day")
    assert (said.code, said.out, len(said.error_lines)) == (2, "", 1)
    assert "there is no batch 'day' in the catalog" in said.err and "magi2 status lists them" in said.err


def test_watching_draws_anew_until_the_batch_has_ended(
    magi2: Magi2, catalog: Catalog, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter_waits(lambda: catalog.batches.mark("night", BatchState.CANCELLED))
    monkeypatch.setattr("time.sleep", waits)
    assert magi2("status", "night", "--watch").code == 0
    shown = terminal.getvalue()
    assert shown.index("night Night\ufffd[2J [red] run: running") < shown.index("run: cancelled")
    assert "3 cancelled" in shown and "40/100" in shown


def iter_waits(then: Callable[[], None]) -> Callable[[float], None]:
    """A sleep that takes no time: the first lets somebody do something, a second would be one too many."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        assert seconds == status.REFRESH_S and not waited
        waited.append(seconds)
        then()

    return sleep


def test_without_a_terminal_watching_shows_once(magi2: Magi2, catalog: Catalog) -> None:
    said = magi2("status", "night", "--watch")
    assert said.code == 0 and "40/100" in said.out and "no terminal" in said.err
    assert "\x1b" not in said.out


def test_watching_is_for_people_and_json_for_scripts(magi2: Magi2, catalog: Catalog) -> None:
    said = magi2("status", "night", "--watch", "--json")
    assert said.code == 2 and "exclude each other" in said.err
