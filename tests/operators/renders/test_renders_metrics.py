"""Metrics are for those who may read our runs."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from magi2.errors import InfrastructureError
from tests.operators.renders.renders_site import Site, client


def test_a_viewer_scrapes_what_the_catalog_counts(viewer: TestClient) -> None:
    answer = viewer.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    values = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert values["magi2_clips", "failed"] == 2
    assert values["magi2_stage_seconds_count", "preview"] == 3
    assert values["magi2_retries_total", "contract"] == 1
    assert values["magi2_price_per_accelerator_hour", "EUR"] == 36.0


def test_nobody_scrapes_without_a_login(site: Site) -> None:
    assert client(None).get("/metrics").status_code == 401


def test_a_catalog_that_does_not_answer_is_no_zero(viewer: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **values: object) -> None:
        raise InfrastructureError("catalog /secret/place: does not answer")

    monkeypatch.setattr("magi2.report.metrics.read_totals", refuse)
    answer = viewer.get("/metrics")
    assert answer.status_code == 503 and "secret" not in answer.text
