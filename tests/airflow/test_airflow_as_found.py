"""An Airflow that lacks our pools: the run, the page and the command line say so, and one command puts it right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magi2.cli.main import main
from tests.airflow.airflow_site import Site

LACKING = "magi2_gpu8"


Magi2 = Callable[..., dict[str, Any]]


@pytest.fixture
def magi2(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Magi2:
    """The JSON of a command of somebody whose Airflow is the site's."""
    for name, value in {**site.airflow.environment, "MAGI2_AIRFLOW_URL": site.airflow.url}.items():
        if name.startswith("MAGI2_"):
            monkeypatch.setenv(name, value)

    def run(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["magi2", *arguments, "--json"])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main()
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    return run


def findings(magi2: Magi2) -> dict[str, tuple[bool, str]]:
    """What the doctor says of Airflow."""
    told = magi2("doctor", "--profile", "tiny", "--airflow")
    names = ("airflow", "pools", "dag", "plugin", "runs")
    return {each["what"]: (each["works"], each["says"]) for each in told["findings"] if each["what"] in names}


@pytest.fixture
def lacking(site: Site, magi2: Magi2) -> Iterator[Site]:
    """The site without one of the pools."""
    site.airflow.request("DELETE", f"/api/v2/pools/{LACKING}")
    yield site
    magi2("airflow", "setup", "--gpu8", "1")


@pytest.mark.faults
def test_missing_pool_is_told_by_the_first_task_and_set_up_by_one_command(lacking: Site, magi2: Magi2) -> None:
    run = lacking.start(lacking.batch("poolless", {"prompt": "a heron", "profile": "tiny-preview"}))
    assert run.wait() == "failed"
    said = f"no pool {LACKING}"
    log = run.log("plan")
    assert said in log and "magi2 airflow setup" in log
    assert run.task("plan")["try_number"] == 1, "trying again mends nothing"
    (problem,) = lacking.airflow.request("GET", "/renders/api/airflow")["problems"]
    assert said in problem
    assert lacking.airflow.request("GET", "/renders/ready") == {"missing_pools": [LACKING], "queues_without_worker": []}
    told = findings(magi2)
    assert (
        told["airflow"][0]
        and told["dag"][0]
        and told["plugin"][0]
        and told["runs"] == (True, "nothing that they would wait for")
    )
    assert told["pools"][0] is False and LACKING in told["pools"][1]

    done = magi2("airflow", "setup", "--gpu8", "2")
    assert {pool["pool"]: (pool["slots"], pool["done"]) for pool in done["pools"]} == {
        "magi2_cpu": (8, "there already"),
        "magi2_gpu1": (1, "there already"),
        LACKING: (2, "created"),
    }
    assert magi2("airflow", "setup", "--gpu8", "3")["pools"][2]["done"] == "before 2"
    assert findings(magi2)["pools"] == (True, f"slots: magi2_cpu 8, magi2_gpu1 1, {LACKING} 3")
