"""Two runs of the benchmarks are compared by how far each part is from its own floor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.alternating import median
from benchmarks.slower import by_part, losses, main


def row(part: str, ms: float, floor: float = 10.0, tokens: int = 8) -> dict[str, object]:
    return {"part": part, "tokens": tokens, "ms": ms, "floor_ms": floor, "ratio": ms / floor if floor else None}


def lost(old: list[dict[str, object]], new: list[dict[str, object]]) -> list[str]:
    return list(losses(by_part(old), by_part(new)))


def test_what_lost_more_than_three_hundredths_is_named() -> None:
    assert lost([row("experts", 12.0)], [row("experts", 12.3)]) == []
    assert lost([row("experts", 12.0)], [row("experts", 12.6)]) == [
        "experts at 8 tokens: 1.200 to 1.260 of its floor, +5.0%"
    ]


def test_a_slower_card_is_no_loss_and_hides_none() -> None:
    assert lost([row("experts", 12.0)], [row("experts", 13.2, floor=11.0)]) == []
    assert lost([row("experts", 12.0)], [row("experts", 12.0, floor=9.0)])


def test_a_part_without_a_floor_is_compared_by_its_time() -> None:
    assert lost([row("audio", 50.0, 0, 0)], [row("audio", 51.0, 0, 0)]) == []
    assert lost([row("audio", 50.0, 0, 0)], [row("audio", 60.0, 0, 0)]) == ["audio: 50.000 to 60.000 ms, +20.0%"]


def test_a_part_that_is_gone_is_named_and_one_of_other_tokens_is_another() -> None:
    assert lost([row("experts", 12.0)], [row("experts", 12.0, tokens=9), row("new", 1.0)]) == [
        "experts at 8 tokens: not measured any more"
    ]


def test_a_part_is_the_median_of_its_runs_and_of_its_distances_from_the_floor() -> None:
    (part,) = median([[row("experts", ms, floor)] for ms, floor in ((12.0, 10.0), (15.0, 15.0), (11.0, 10.0))])
    assert (part["ms"], part["ratio"], part["runs"]) == (12.0, 1.1, 3)
    assert part["ms"] / part["floor_ms"] == pytest.approx(1.1, rel=1e-3)


@pytest.mark.parametrize(("new", "status"), [(12.0, 0), (13.0, 1)])
def test_files_of_now_and_before_are_read_and_the_status_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], new: float, status: int
) -> None:
    old, other = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps([row("experts", 12.0)]))
    other.write_text(json.dumps({"parts": [row("experts", new)], "old_parts": [row("experts", 12.0)]}))
    for files in ((old, other), (other,)):
        monkeypatch.setattr(sys, "argv", ["slower", *map(str, files)])
        assert main() == status
    assert capsys.readouterr().out.count("experts") == 2 * status
