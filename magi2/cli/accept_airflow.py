"""The steps of `magi2 accept` that ask Airflow: what runs would wait for, and a batch through all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from magi2.acceptance.plan import Difference, Figure, Findings, Found, NotRunError, Options, Outcome, Verdict
from magi2.batches.rerun import DAG_ID
from magi2.cli.airflow_api import AirflowApi, start_run
from magi2.cli.doctor import ask_airflow
from magi2.config.settings import Settings
from magi2.errors import Magi2Error

REHEARSED = ("demo", "tiny")
"""Profiles of weights that render three clips in minutes."""
REHEARSAL_S = 1800.0
_TICK_S = 1.0
_ENDED = ("success", "failed")
_PROMPTS = (
    "a large red circle bounces slowly on white, beeps",
    "a large yellow triangle spins fast on gray, a rising tone",
    "a large green square moves down on orange, a falling tone",
)


def own_steps(settings: Settings) -> Mapping[str, Callable[[Options], Outcome]]:
    """The steps, by name."""
    return {
        "airflow": partial(_outcome, "airflow", lambda: airflow(settings)),
        "rehearse": partial(_outcome, "rehearse", lambda: rehearse(settings)),
    }


def _outcome(name: str, find: Callable[[], Iterator[Found]], options: Options) -> Outcome:
    found, started = Findings(), time.monotonic()

    def ended(verdict: Verdict, reason: str | None = None) -> Outcome:
        return found.outcome(name, verdict, time.monotonic() - started, key=options.key, reason=reason)

    try:
        for each in find():
            found.add(each)
    except NotRunError as error:
        return ended("not run", str(error))
    except Magi2Error as error:
        return ended("failed", str(error))
    return ended("passed")


def airflow(settings: Settings) -> Iterator[Found]:
    """What the doctor says of Airflow: pools, the DAG, the plugin, queues without a live worker."""
    _require_airflow(settings)
    for finding in ask_airflow(settings):
        if finding.works is False:
            yield Difference(f"{finding.what}: {finding.says}")
        else:
            yield Figure(finding.what, finding.says)


def rehearse(settings: Settings) -> Iterator[Found]:
    """Three clips from rows to a report, by a run that is ended where it is not awaited to its end."""
    _require_airflow(settings)
    profile = _rehearsed_profile(settings)
    api = AirflowApi.of(settings)
    dag = api.find(f"/api/v2/dags/{DAG_ID}")
    if dag is None or dag["is_paused"]:
        raise NotRunError(f"{DAG_ID} is {'paused' if dag else 'not there'}: its runs would wait for ever")
    rows = [{"name": f"accept_{number}", "prompt": text, "seed": number} for number, text in enumerate(_PROMPTS, 1)]
    started = time.monotonic()
    run_id = start_run(settings, DAG_ID, {"rows": json.dumps(rows), "name": "accept", "profile": profile})
    path = f"/api/v2/dags/{DAG_ID}/dagRuns/{run_id}"
    yield Figure("profile", profile)
    yield Figure("clips", len(rows))
    state = "queued"
    try:
        while state not in _ENDED and time.monotonic() - started < REHEARSAL_S:
            time.sleep(_TICK_S)
            state = api.text(api.ask("GET", path), "state")
    finally:
        if state not in _ENDED:
            api.ask("PATCH", path, {"state": "failed"}, params={"update_mask": "state"})
    yield Figure("batch", round(time.monotonic() - started, 1), "s")
    if state != "success":
        why = "failed" if state == "failed" else f"was {state} after {REHEARSAL_S:g} s, and was ended"
        yield Difference(f"the run {why}: {', '.join(_unfinished(api, path)) or 'see its log'}")


def _unfinished(api: AirflowApi, path: str) -> list[str]:
    """Tasks of a run that did not succeed, with their states."""
    tasks: list[dict[str, Any]] = api.ask("GET", f"{path}/taskInstances").get("task_instances", [])
    return [f"{task['task_id']} {task['state']}" for task in tasks if task["state"] not in ("success", "skipped")]


def _require_airflow(settings: Settings) -> None:
    if settings.airflow_url is None:
        raise NotRunError("MAGI2_AIRFLOW_URL is not set")


def _rehearsed_profile(settings: Settings) -> str:
    """The profile of the deployment's weights, if they are small ones. Raises NotRunError."""
    from magi2.checkpoints.fit import fitting_profile
    from magi2.checkpoints.layout import CheckpointFolder

    found = fitting_profile(CheckpointFolder(settings.ckpt_root), settings.configs) if settings.ckpt_root else None
    if found not in REHEARSED:
        weights = f"those of profile {found}" if found else "no known ones"
        raise NotRunError(
            f"the weights here are {weights}: rehearse with the demo's, "
            "by MAGI2_CKPT_ROOT=examples/demo_checkpoint in the deployment and here"
        )
    return found
