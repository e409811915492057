"""Airflow on this machine for a demonstration or a test: its components as plain processes, on SQLite by default."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from configparser import ConfigParser
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from magi2.runtime.guard import Guard
from magi2.runtime.process import ProcessGroup

REPOSITORY = Path(__file__).resolve().parents[1]
POOLS = REPOSITORY / "configs" / "deploy" / "pools.json"
COMPONENTS = ("api-server", "scheduler", "dag-processor")
TRIGGERER = "triggerer"
"""Has nothing to do, since no operator here defers; where people look, Airflow's own page is red without it."""
PARTS = ("metadatabase", "scheduler", "dag_processor")
"""Of what Airflow tells the health."""
FINISHED = ("success", "failed")
START_S = 900.0
"""How long one thing may take to be there at the start: minutes on a busy machine, seconds on an idle one."""
SQLITE_WAIT_S = 60
"""SQLite has one writer at a time; whoever waits for it longer than this fails. Its own 5 s pass on a busy machine."""


class LocalAirflow:
    """API server, scheduler and DAG processor; as a context they run, and nothing of them is left afterwards.

    They and all that they started end with this process too, if it is killed.
    Whoever can reach the port is an administrator, so it is bound to this machine alone. `environment` is added to
    what the components and so the tasks see; of this process's own, variables of Airflow and of this project are left
    out. `template` is a SQLite file to begin with: the database of another Airflow's `prepare`, which takes longer than
    a copy. `left_runs` chooses, among the runs that an earlier instance left unfinished, those that are set failed
    before the scheduler goes on with them.
    """

    def __init__(
        self,
        home: Path,
        *,
        environment: Mapping[str, str],
        port: int | None = None,
        database: str | None = None,
        template: Path | None = None,
        left_runs: Callable[[Mapping[str, Any]], bool] | None = None,
        parallelism: int = 3,
        components: Sequence[str] = COMPONENTS,
    ) -> None:
        self.components = components
        self.home = home.absolute()
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._template = template
        self._left_runs = left_runs
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MAGI2_"))},
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database
            or f"sqlite:///{self.database_file}?timeout={SQLITE_WAIT_S}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",  # its default of a second is one for every stage
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # nobody edits them meanwhile
            "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "5",
            "PYTHONUNBUFFERED": "1",
            # From the current folder, the project's egg-info beside its sources would register the plugin twice.
            "PYTHONSAFEPATH": "1",
            **environment,
        }
        self.groups: dict[str, ProcessGroup] = {}
        self.guards: dict[str, Guard] = {}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.prepare()
            for component in self.components:
                if component == "scheduler" and self._left_runs:
                    self._end_runs(self._left_runs)
                self.start(component)
            self.wait_until_healthy()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Make or upgrade the database, and the pools."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        if self._template:
            shutil.copyfile(self._template, self.database_file)
            return
        self.airflow("db", "migrate")
        self.airflow("pools", "import", str(POOLS))

    def _write_settings(self) -> None:
        """A file of settings without any path: the one that Airflow writes where there is none would keep today's.

        The key of connections that somebody has entered stays.
        """
        path, settings = self.home / "airflow.cfg", ConfigParser(interpolation=None)
        settings.read(path)
        key = settings.get("core", "fernet_key", fallback="") or b64encode(os.urandom(32), b"-_").decode()
        path.touch(mode=0o600)
        path.write_text(f"# The other settings come from the environment.\n[core]\nfernet_key = {key}\n")

    @property
    def database_file(self) -> Path:
        """The database, unless it is on a server."""
        return self.home / "airflow.db"

    def airflow(self, *arguments: str) -> str:
        """Output of an `airflow` command. Raises RuntimeError when it fails."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=START_S)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def start(self, component: str) -> None:
        """Start a component; its output goes to a file of its name in the home folder."""
        with self.log_path(component).open("ab") as log:
            command = [sys.executable, "-m", "airflow", component]
            group = ProcessGroup(command, environment=self.environment, log_fd=log.fileno())
            self.groups[component] = group
            # The folder is the guard's to remove at the end.
            folder = Path(tempfile.mkdtemp(prefix=f"{component}-", dir=self.home))
            self.guards[component] = Guard(group, folder, environment=self.environment, log_fd=log.fileno())

    def stop(self, *, grace_s: float = 5.0) -> None:
        """End every component with all it started, the scheduler first so that nothing new is begun."""
        for component in ("scheduler", "dag-processor", TRIGGERER, "api-server"):
            if group := self.groups.pop(component, None):
                group.terminate(grace_s)
                self.guards.pop(component).dismiss()

    def log_path(self, component: str) -> Path:
        """The file with a component's output."""
        return self.home / f"{component}.log"

    def require_alive(self) -> None:
        """Raises RuntimeError with the end of its log when a component has ended."""
        for component, group in self.groups.items():
            if group.poll() is not None:
                raise RuntimeError(f"{component} ended:\n{self.log_path(component).read_text()[-3000:]}")

    def wait_until_healthy(self, parts: Sequence[str] = PARTS, timeout_s: float = START_S) -> None:
        """Wait until Airflow calls its `parts` healthy.

        Raises: RuntimeError with the end of a log if a component ends first, or when it takes too long.
        """

        def is_healthy() -> bool:
            self.require_alive()
            try:
                health = self.request("GET", "/api/v2/monitor/health")
            except OSError:
                return False
            return all(health[name]["status"] == "healthy" for name in parts)

        self.wait_for(is_healthy, timeout_s, f"Airflow's {', '.join(parts)} to be healthy")

    def wait_for(self, condition: Callable[[], object], timeout_s: float, what: str, *, every_s: float = 0.5) -> None:
        """Ask until the condition holds. Raises RuntimeError naming `what` when it does not within the time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {timeout_s:g} s for {what}; see the logs in {self.home}")
            time.sleep(every_s)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON from the REST API.

        Raises: RuntimeError with the status and the answer when it refuses; OSError when there is no answer or only
        that of a server in trouble, either of which may pass.
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            kind = RuntimeError if error.code < 500 else ConnectionError
            raise kind(f"{method} {path}: {error.code}: {error.read().decode()[:2000]}") from error

    def unpause(self, dag_id: str, timeout_s: float = START_S) -> None:
        """Let a DAG run, once it was parsed."""

        def is_parsed() -> bool:
            try:
                self.request("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})
            except RuntimeError as error:
                if ": 404: " in str(error):
                    return False
                raise
            except OSError:
                return False
            return True

        self.wait_for(is_parsed, timeout_s, f"{dag_id} to be parsed")

    def _end_runs(self, chosen: Callable[[Mapping[str, Any]], bool]) -> None:
        """Set unfinished runs failed.

        Before the scheduler starts their tasks again: on SQLite both would keep each other waiting for `SQLITE_WAIT_S`.
        """
        self.wait_until_healthy(["metadatabase"])
        unfinished = self.request("GET", "/api/v2/dags/~/dagRuns?state=queued&state=running")
        for run in filter(chosen, unfinished["dag_runs"]):
            self.request("PATCH", self.run_path(run["dag_id"], run["dag_run_id"]), {"state": "failed"})

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a run; its id."""
        body = {"logical_date": None, "conf": conf}
        return str(self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_path(self, dag_id: str, run_id: str) -> str:
        """Where the REST API has the run."""
        return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"

    def state(self, dag_id: str, run_id: str) -> str:
        """The run's state."""
        return str(self.request("GET", self.run_path(dag_id, run_id))["state"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The run's task instances, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            path = f"{self.run_path(dag_id, run_id)}/taskInstances?limit=100&offset={len(found)}"
            page = self.request("GET", path)
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    def wait_until_finished(self, dag_id: str, run_id: str, timeout_s: float) -> str:
        """Wait for the end of a run; its state. Airflow looks up every task's version for an answer: ask seldom."""
        states: list[str] = []

        def is_finished() -> bool:
            states.append(self.state(dag_id, run_id))
            return states[-1] in FINISHED

        self.wait_for(is_finished, timeout_s, f"the end of run {run_id}", every_s=2)
        return states[-1]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody listens on the port."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
