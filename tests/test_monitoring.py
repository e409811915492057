"""The dashboard and the alert rules speak of metrics that there are."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from magi2.artifacts.local import LocalStore
from magi2.catalog import open_catalog
from magi2.config.price import Price
from magi2.report.metrics import exposition

FOLDER = Path(__file__).parents[1] / "docs" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
QUERIES = {f"panel {panel['title']} {t['refId']}": t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]}
QUERIES |= {f"alert {rule['alert']}": rule["expr"] for rule in RULES}
FUNCTIONS = {"sum", "max", "increase", "rate", "time", "absent", "scalar", "predict_linear", "avg_over_time"}
WORDS = {"by", "and", "on", "or", "unless"}
DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Every series by name: its labels and their values."""
    folder = tmp_path_factory.mktemp("metrics")
    catalog = open_catalog(f"sqlite:///{folder}/catalog.sqlite")
    text = exposition(catalog, LocalStore(folder), Price(1.0, "EUR"), at=datetime.now(UTC)).decode()
    found: dict[str, dict[str, set[str]]] = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        labels = found.setdefault(sample.name, {})
        for name, value in sample.labels.items():
            labels.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize("place", QUERIES)
def test_a_query_names_series_and_labels_that_are_exported(
    place: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    query = QUERIES[place]
    names = set(re.findall(r"magi2_\w+", query))
    assert names and names <= exported.keys()
    for name, matchers in re.findall(r"(magi2_\w+){([^}]*)}", query):
        for label, operator, wanted in re.findall(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"', matchers):
            values = exported[name][label]
            assert {value for value in values if re.fullmatch(wanted, value)}, (name, label, operator, wanted)
    labels = {label for name in names for label in exported[name]}
    for grouping in re.findall(r"\bby \(([^)]*)\)", query):
        assert {label.strip() for label in grouping.split(",")} <= labels


@pytest.mark.parametrize("place", QUERIES)
def test_a_query_is_made_of_known_words_and_balanced_brackets(place: str) -> None:
    query = re.sub(r'"[^"]*"', '""', QUERIES[place])
    for left, right in ("()", "{}", "[]"):
        assert query.count(left) == query.count(right)
    for duration in re.findall(r"\[([^\]]*)\]", query):
        assert DURATION.fullmatch(duration)
    bare = re.sub(r"{[^}]*}|\[[^\]]*\]|\bby \([^)]*\)", "", query)
    for word in re.findall(r"[A-Za-z_]\w*", bare):
        assert word in FUNCTIONS | WORDS or word.startswith("magi2_"), word
    for name in re.findall(r"(?:rate|increase)\((\w+)", query):
        assert name.endswith(("_total", "_sum", "_count")), f"{name} is no counter"


def test_every_metric_is_on_the_dashboard_or_in_a_rule_and_in_the_description(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    used = {name for query in QUERIES.values() for name in re.findall(r"magi2_\w+", query)}
    assert exported.keys() == used
    described = set(re.findall(r"magi2_\w+", (FOLDER / "README.md").read_text()))
    assert {re.sub("_(sum|count)$", "", name) for name in exported} <= described
    assert described - {"magi2_render_batch"} <= {re.sub("_(sum|count)$", "", name) for name in exported}


def test_rules_cover_what_people_must_hear_of() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    wanted = {"Magi2NoProgress", "Magi2Failing", "Magi2DiskLow", "Magi2QueueOld", "Magi2HitRateFell", "Magi2Unseen"}
    assert wanted <= set(names)
    for rule in RULES:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert DURATION.fullmatch(rule["for"])


def test_panels_lie_side_by_side_and_ask_the_chosen_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and place["w"] > 0 and place["h"] > 0
        assert {each["datasource"]["uid"] for each in [panel, *panel["targets"]]} == {"${datasource}"}
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
