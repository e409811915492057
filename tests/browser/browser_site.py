"""An Airflow API server over a catalog and a store with three batches, and who may log in to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from PIL import Image

from magi2.artifacts import ArtifactStore, open_store
from magi2.catalog import BatchState, Catalog, ClipState, NewBatch, PlannedClip, catalog_url, open_catalog
from magi2.catalog.clips import ClipQuery
from magi2.catalog.records import now
from magi2.catalog.shards import ShardPosition
from magi2.config.settings import Settings
from magi2.stages.snapshots import picture_name
from magi2.types import Clip, StageName
from tests.browser.browser_batch import render_batch, write_rows
from tests.real_servers import S3Server
from tools.local_airflow import LocalAirflow

DAG_ID = "magi2_render_batch"
PASSWORDS = {"ann": "ann's word", "vic": "vic's word"}
NIGHT_RUN, LIVE_RUN = "manual__night", "manual__live"
LIVE, WATCHED, TAKES, MANY = "1" * 16, "2" * 16, "4" * 16, "5" * 16
MANY_CLIPS = 5000
PROFILE = "0" * 64
HIDDEN_HOST = "localhost"
"""To the browser no such host."""


@dataclass
class BrowserSite:
    """What the tests know of the deployment behind the page. Everybody logs in; ann is an admin, vic a viewer."""

    airflow: LocalAirflow
    settings: Settings
    night: str = ""
    """The rendered batch: a fox twice, a hostile prompt, and an endless one that failed."""

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(catalog_url(self.settings))

    @cached_property
    def store(self) -> ArtifactStore:
        return open_store(self.settings.store)

    @classmethod
    def at(cls, folder: Path, checkpoint: Path, template: Path, server: S3Server) -> BrowserSite:
        """A deployment in a folder, with its store on a server to which the browser has no way; nothing runs yet."""
        settings = Settings(
            ckpt_root=checkpoint,
            store=f"s3://{server.bucket}/site?endpoint={hidden_from_browsers(server.endpoint)}",
            catalog=f"sqlite:///{folder}/catalog.sqlite",
            price_per_accelerator_hour=2.5,
        )
        home = folder / "airflow"
        home.mkdir()
        passwords = home / "passwords.json"
        passwords.write_text(json.dumps(PASSWORDS))
        environment = {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,vic:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "MAGI2_CKPT_ROOT": str(checkpoint),
            "MAGI2_STORE": settings.store,
            "MAGI2_CATALOG": str(settings.catalog),
            **credentials_of(server),
            "MAGI2_PRICE_PER_ACCELERATOR_HOUR": "2.5",
        }
        return cls(LocalAirflow(home, environment=environment, template=template), settings)

    def fill(self, folder: Path) -> None:
        """Render the night's batch, and enter two running ones and a large one that only the catalog knows."""
        self.night = render_batch(write_rows(folder / "night.jsonl"), self.settings, run_id=NIGHT_RUN)
        for batch_id, name, run_id in ((LIVE, "live", LIVE_RUN), (WATCHED, "watched", None)):
            self._enter(batch_id, name, 3, run_id)
            self.catalog.batches.mark(batch_id, BatchState.RUNNING)
        self._enter(MANY, "many", MANY_CLIPS, None)
        self.catalog.batches.mark(MANY, BatchState.CANCELLED)

    def _enter(self, batch_id: str, name: str, clips: int, run_id: str | None) -> None:
        origin: dict[str, Any] = {"dag_id": DAG_ID if run_id else None, "run_id": run_id}
        batch = NewBatch(batch_id=batch_id, name=name, source="x.jsonl", clips_total=clips, **origin)
        self.catalog.batches.create(batch, {PROFILE: {"refiner": None}})
        self.catalog.clips.add(batch_id, (PlannedClip(clip(number), 0) for number in range(clips)))

    def start(self) -> None:
        """Bring the server up, with our DAGs and two runs; no scheduler, so that runs are only ever queued."""
        self.airflow.prepare()
        self.airflow.airflow("dags", "reserialize")
        self.airflow.start("api-server")
        self.airflow.wait_for(self._is_up, 240, "the API server")
        for run_id in (NIGHT_RUN, LIVE_RUN):
            body = {"logical_date": None, "dag_run_id": run_id, "conf": {"batch": "x.jsonl"}}
            self.request("POST", f"/api/v2/dags/{DAG_ID}/dagRuns", body)

    def _is_up(self) -> bool:
        try:
            return bool(self.airflow.request("GET", "/api/v2/monitor/health"))
        except OSError:
            return False

    def token(self, user: str) -> str:
        """What stands for the user in a cookie or header."""
        body = {"username": user, "password": PASSWORDS[user]}
        return str(self.airflow.request("POST", "/auth/token", body)["access_token"])

    @cached_property
    def _admin(self) -> str:
        return self.token("ann")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON from the server, as ann."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._admin}"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.airflow.url + path, data, headers, method=method), timeout=60) as answer:
            return json.loads(answer.read())

    def runs(self) -> list[dict[str, Any]]:
        """Airflow's runs of our DAG, the newest first."""
        found: list[dict[str, Any]] = self.request("GET", f"/api/v2/dags/{DAG_ID}/dagRuns?order_by=-id")["dag_runs"]
        return found

    def run_state(self, run_id: str) -> str:
        """A run's state in Airflow."""
        return str(self.request("GET", f"/api/v2/dags/{DAG_ID}/dagRuns/{quote(run_id)}")["state"])

    def clip_id(self, name: str) -> str:
        """The id of a clip of the night's batch."""
        page = self.catalog.clips.search(ClipQuery(batch_id=self.night, text=name))
        return next(record.clip_id for record in page.rows if name in record.clip.names)

    def fail_a_watched_clip(self) -> None:
        """What a stage would enter when a clip of the watched batch fails."""
        clip_id = clip(0).clip_id
        self.catalog.clips.mark(WATCHED, [clip_id], ClipState.RUNNING)
        failure: dict[str, Any] = {"failed_stage": StageName.PREVIEW, "reason": "not enough memory"}
        self.catalog.clips.mark(WATCHED, [clip_id], ClipState.FAILED, **failure)

    def work_on_a_watched_clip(self, *, step: int, is_shown: bool = True) -> None:
        """What the preview stage enters at a step of a clip of the watched batch, and its picture."""
        clip_id, attempt = clip(1).clip_id, {"attempt": 1, "shard": 0}
        if step == 10:
            self.catalog.runs.start(WATCHED, StageName.PREVIEW, [clip_id], host="node1", **attempt)  # type: ignore[arg-type]
        where: dict[str, Any] = {**attempt, "stage": StageName.PREVIEW, "clip_id": clip_id, "steps_per_second": 1.0}
        self.catalog.shards.at_step(WATCHED, ShardPosition(**where, step=step, steps=20, at=now()))
        if is_shown:
            content = BytesIO()
            Image.new("RGB", (64, 32), "red").save(content, format="WEBP")
            self.store.put_document(picture_name(clip_id), content.getvalue())
        else:
            self.store.remove_document(picture_name(clip_id))

    def enter_takes(self) -> tuple[str, ...]:
        """A batch of two clips of one name; their ids."""
        clips = [Clip("of the same name", seed, "tiny", PROFILE, names=("take",)) for seed in (1, 2)]
        batch = NewBatch(batch_id=TAKES, name="takes", source="x.jsonl", clips_total=2)
        self.catalog.batches.create(batch, {PROFILE: {"refiner": None}})
        self.catalog.clips.add(TAKES, [PlannedClip(each, 0) for each in clips])
        return tuple(each.clip_id for each in clips)


def hidden_from_browsers(endpoint: str) -> str:
    """The endpoint by a name that this machine resolves and the browser does not."""
    return endpoint.replace("127.0.0.1", HIDDEN_HOST)


def credentials_of(server: S3Server) -> dict[str, str]:
    """What whoever asks the server needs in their environment."""
    return {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}


def clip(number: int) -> Clip:
    """A clip that nobody renders."""
    return Clip(f"prompt {number}", number, "tiny", PROFILE, names=(f"clip-{number:04}",))
