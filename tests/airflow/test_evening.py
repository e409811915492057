"""An evening: forty rows in a bucket, started and steered from the shell, through a real Airflow on tiny weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from magi2.config.settings import Settings
from magi2.types import variant_seed
from tests.airflow.airflow_site import DAG_ID, RUN_TIMEOUT_S, Run, Site
from tests.random_weights import NOISE_IS_GOOD
from tests.real_servers import S3Server, seaweedfs
from tools.local_airflow import LocalAirflow

pytestmark = pytest.mark.deployment

WIDE = {
    "extends": "tiny",
    "preview": {"width": 64, "height": 32, "steps": 1},
    "refiner": None,
    "text": {"use_negative_prompt": False},
}
TALL = {**WIDE, "experimental": True, "preview": {"width": 32, "height": 64, "steps": 2}}
REHEARSED = {
    "preview": {"width": 64, "height": 32, "steps": 1, "tiers": "tiny"},
    "refiner": {"width": 80, "height": 32, "steps": 1},
}
"""Of the profile tiny: what an acceptance rehearses with, smaller still."""
POISON = ("poison-1", "poison-2")
IN_THE_WAY = "locked"
"""A file at the target that has the name of the folder in which the poison rows want their clips."""


def rows() -> list[dict[str, Any]]:
    """A tall one and two poisoned, which set their steps; thirty-six names of two clips; one row of two variants."""
    shared = {"seed": 5, "profile": "evening-tall", "preview.steps": 1}
    tall = [{"name": name, "prompt": f"A tower, {name}.", **shared} for name in ("tall", *POISON)]
    poison = [{**row, "delivery_name": f"{IN_THE_WAY}/{{name}}.mp4"} for row in tall[1:]]
    takes = [{"name": f"take-{n}", "prompt": f"A kite over dunes, {n % 2}.", "seed": n % 2} for n in range(36)]
    return [tall[0], *poison, *takes, {"name": "many", "prompt": "A gate.", "seed": 7, "variants": 2}]


TALL_CLIP = "evening/tall_5_evening-tall_+_preview.steps=1.mp4"
TAKES = {f"evening/take-{n}_{n % 2}_evening.mp4" for n in range(36)}
VARIANTS = {"evening/many_7_evening.mp4", f"evening/many-v2_{variant_seed(7, 2)}_evening.mp4"}


@dataclass
class Evening:
    """An Airflow whose batch files lie in a bucket, and a shell that knows its address."""

    site: Site
    s3: S3Server

    @property
    def studio(self) -> Path:
        return self.site.folder / "studio"

    @property
    def arrived(self) -> set[str]:
        return {str(path.relative_to(self.studio)) for path in self.studio.rglob("*.mp4")}

    def upload(self, name: str) -> str:
        """The address of a batch file with the rows."""
        content = "\n".join(map(json.dumps, rows())).encode()
        self.s3.client().put_object(self.s3.bucket, f"prompts/{name}", BytesIO(content), len(content))
        return f"s3://{self.s3.bucket}/prompts/{name}"

    def magi2(self, *arguments: str) -> Any:
        """What a command answers."""
        command = [sys.executable, "-m", "magi2.cli.main", *arguments, "--json"]
        environment = {**self.site.airflow.environment, "MAGI2_AIRFLOW_URL": self.site.airflow.url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def evening(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, airflow_template: Path
) -> Iterator[Evening]:
    tmp_path = tmp_path_factory.mktemp("evening")
    profiles = shutil.copytree(Settings().configs, tmp_path / "configs") / "profiles"
    for name, content in (("evening", WIDE), ("evening-tall", TALL)):
        (profiles / f"{name}.yaml").write_text(yaml.safe_dump(content))
    tiny = yaml.safe_load((profiles / "tiny.yaml").read_text())
    (profiles / "tiny.yaml").write_text(yaml.safe_dump({**tiny, **REHEARSED}))
    for folder in ("seaweedfs", "studio"):
        (tmp_path / folder).mkdir()
    with seaweedfs(tmp_path / "seaweedfs") as s3:
        environment = {
            **NOISE_IS_GOOD,
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "MAGI2_CKPT_ROOT": str(tiny_checkpoint),
            "MAGI2_CONFIGS": str(tmp_path / "configs"),
            "MAGI2_STORE": str(tmp_path / "store"),
            "MAGI2_DELIVERY_TARGETS": json.dumps({"studio": str(tmp_path / "studio")}),
            "MAGI2_INPUT_ROOTS": f"s3://{s3.bucket}/prompts/?endpoint={s3.endpoint}",
            "OMP_NUM_THREADS": "1",
        }
        home = tmp_path / "airflow"
        with LocalAirflow(home, environment=environment, template=airflow_template, parallelism=1) as airflow:
            airflow.unpause(DAG_ID)
            yield Evening(Site(airflow, tmp_path), s3)


def test_evening_is_submitted_paused_at_equal_failures_told_resumed_and_arrives_under_its_names(
    evening: Evening,
) -> None:
    assert len(rows()) == 40
    (evening.studio / IN_THE_WAY).write_bytes(b"of somebody else")
    submitted = evening.magi2(
        *("batch", "submit", evening.upload("evening.jsonl"), "--profile", "evening", "--target", "studio"),
        *("--failure-limit", "2", "--failure-streak", "2"),
    )
    run = Run(evening.site, submitted["run_id"])

    told = "notice failure_streak: batch evening"
    evening.site.airflow.wait_for(lambda: told in run.log("shard.deliver", 0), RUN_TIMEOUT_S, "a pause", every_s=2)
    status = evening.magi2("status", run.xcom("plan", key="batch_id"))
    assert (status["state"], status["requested"]) == ("running", "pause")
    assert status["paused_because"].startswith("2 clips in a row failed in deliver, input")
    assert f"{told} ({status['batch_id']}) is paused: {status['paused_because']}" in run.log("shard.deliver", 0)
    assert status["failures"] == "2 failed of at most 2"
    assert evening.arrived == {TALL_CLIP}, "it is there while the others wait"

    assert evening.magi2("batch", "resume", "evening")["requested"] is None
    assert run.wait() == "success"
    assert evening.arrived == {TALL_CLIP} | TAKES | VARIANTS
    report = run.report
    assert (report["clips_done"], report["clips_failed"], report["is_within_limit"]) == (5, 2, True)
    (group,) = report["failures"]
    assert (group["stage"], group["code"], group["count"]) == ("deliver", "input", 2)
    assert (evening.studio / IN_THE_WAY).read_bytes() == b"of somebody else"
    assert {name for clip in report["failed"] for name in clip["names"]} == set(POISON)


def test_an_acceptance_finds_this_airflow_at_work_and_rehearses_three_clips(evening: Evening) -> None:
    out = evening.site.folder / "accept"
    found = evening.magi2("accept", "--steps", "airflow,rehearse", "--out", str(out))
    steps = {step["step"]: step for step in found["steps"]}
    assert {name: step["verdict"] for name, step in steps.items()} == {"airflow": "passed", "rehearse": "passed"}, steps
    figures = {name: figure["value"] for name, figure in steps["rehearse"]["figures"].items()}
    assert (figures["profile"], figures["clips"]) == ("tiny", 3) and figures["batch"] > 0
    assert evening.site.airflow.url not in (out / "report.json").read_text()
