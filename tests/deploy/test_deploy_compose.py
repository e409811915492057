"""What docker-compose.yml promises, checked without an engine."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts import open_store
from magi2.config.settings import Settings
from tests.deploy.deploy_compose import (
    AIRFLOW_ENV,
    COMPOSE,
    ENV_EXAMPLE,
    REPOSITORY,
    WORKER_COMPOSE,
    WORKER_ENV_EXAMPLE,
    env_lines,
    example_environment,
    load_compose,
    service_environment,
    variables,
)

TEXT = COMPOSE.read_text()
SERVICES: dict[str, Any] = load_compose(example_environment())["services"]
SECRET = re.compile(r"PASSWORD|SECRET|KEY")
ONE_SHOT = {"airflow-init"}
ROLES = {
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
    "airflow-init",
    "cpu-worker",
    "gpu-worker-cuda",
    "gpu-worker-musa",
    "postgres",
    "redis",
    "s3",
}


def test_every_role_is_there() -> None:
    assert SERVICES.keys() == ROLES


FILES = {COMPOSE: ENV_EXAMPLE, WORKER_COMPOSE: WORKER_ENV_EXAMPLE}
WORKERS: dict[str, Any] = load_compose(example_environment(WORKER_ENV_EXAMPLE), WORKER_COMPOSE)["services"]


@pytest.mark.slow
@pytest.mark.programs("docker-compose")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_docker_compose_accepts_the_file(file: Path, tmp_path: Path) -> None:
    filled = tmp_path / "env"
    filled.write_text("".join(f"{name}={value}\n" for name, value in example_environment(FILES[file]).items()))
    command = ["docker-compose", "--env-file", str(filled), "-f", str(file), "config", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_compose_specification_accepts_the_file(file: Path) -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="no compose-spec: pip install compose-spec")
    document = load_compose(example_environment(FILES[file]), file)
    for service in document["services"].values():
        # The checker takes a tag or a digest, the engine both.
        service["image"] = re.sub(r":[^:@/]+@", "@", service["image"])
    # Written out, since it does not know YAML's merge keys.
    compose_spec.PyCompose.from_yaml(json.dumps(document)).validate()


@pytest.mark.parametrize("name", sorted(name for name in variables(TEXT) if SECRET.search(name) and "PE_" not in name))
def test_secret_has_no_default_and_is_asked_for(name: str) -> None:
    assert variables(TEXT)[name] is None
    uses = re.findall(rf"\$\{{{name}[^}}]*\}}", TEXT)
    assert set(uses) == {f"${{{name}:?set {name} in .env}}"}
    without = {key: value for key, value in example_environment().items() if key != name}
    with pytest.raises(KeyError, match=f"set {name} in .env"):
        load_compose(without)


def test_no_secret_is_written_down() -> None:
    for service in SERVICES.values():
        for name, value in service_environment(service).items():
            if SECRET.search(name) and value and not name.endswith("PASSWORDS_FILE"):
                assert value.startswith("example-"), name
    assert not any(SECRET.search(name) for name in env_lines(AIRFLOW_ENV) if not name.endswith("PASSWORDS_FILE"))
    secrets = {name: value for name, value in env_lines(ENV_EXAMPLE).items() if SECRET.search(name)}
    assert secrets and not any(secrets.values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_example_names_exactly_the_variables_of_the_file(file: Path) -> None:
    assert env_lines(FILES[file]).keys() == variables(file.read_text()).keys()


ALL_SERVICES = {**SERVICES, **{f"worker host's {name}": service for name, service in WORKERS.items()}}


@pytest.mark.parametrize("name", sorted(ALL_SERVICES))
def test_no_service_has_more_than_it_needs(name: str) -> None:
    service = ALL_SERVICES[name]
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True and any(place.startswith("/tmp") for place in service["tmpfs"])
    assert re.fullmatch(r"\d+g", service["mem_limit"])
    is_ours = service["image"].startswith("magi2:")  # whose Dockerfile ends in USER 50000:0
    assert is_ours != ("user" in service) and service.get("user") not in ("root", "0", "0:0")


def test_a_worker_host_holds_a_workers_variables_alone() -> None:
    names = variables(WORKER_COMPOSE.read_text()).keys()
    secrets = {name for name in names if SECRET.search(name)}
    assert secrets == {"REDIS_PASSWORD", "CATALOG_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "AIRFLOW_API_SECRET_KEY"}
    for name, service in WORKERS.items():
        here, there = service_environment(SERVICES[name]), service_environment(service)
        missing = here.keys() - there.keys()
        assert all(variable.startswith(("MAGI2_PE_", "MAGI2_NOTIFY_")) for variable in missing), missing
        assert there.keys() <= here.keys()
        special = {"environment", "build", "depends_on", "hostname", "ports", "extra_hosts"}
        same = {key for key in service if key not in special}
        assert {key: service[key] for key in same} == {key: SERVICES[name][key] for key in same}


@pytest.mark.parametrize("name", sorted(name for name in variables(WORKER_COMPOSE.read_text()) if SECRET.search(name)))
def test_secret_of_a_worker_host_is_asked_for(name: str) -> None:
    without = {key: value for key, value in example_environment(WORKER_ENV_EXAMPLE).items() if key != name}
    with pytest.raises(KeyError, match=f"set {name} in .env.worker"):
        load_compose(without, WORKER_COMPOSE)


def test_pools_have_the_slots_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("deploy_init", REPOSITORY / "configs" / "deploy" / "init.py")
    assert spec and spec.loader
    init = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(init)
    asked = SERVICES["airflow-init"]["environment"].keys()
    assert {f"POOL_{name.upper()}" for name in init.sized_pools()} <= asked
    monkeypatch.setenv("POOL_MAGI2_GPU8", "20")
    monkeypatch.setenv("POOL_MAGI2_CPU", "")
    assert {name: pool["slots"] for name, pool in init.sized_pools().items()} == {
        "magi2_cpu": 8,
        "magi2_gpu1": 1,
        "magi2_gpu8": 20,
    }
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("POOL_MAGI2_GPU1", wrong)
        with pytest.raises(ValueError, match=r"POOL_MAGI2_GPU1=.* is no number of slots"):
            init.sized_pools()


def test_the_public_address_is_one_of_the_environment() -> None:
    there = load_compose({**example_environment(), "AIRFLOW_PUBLIC_URL": "https://clips.example"})["services"]
    assert there["airflow-api-server"]["environment"]["AIRFLOW__API__BASE_URL"] == "https://clips.example"


@pytest.mark.slow
@pytest.mark.programs("openssl")
def test_the_example_command_fills_every_secret(tmp_path: Path) -> None:
    copy = tmp_path / ".env"
    shutil.copy(ENV_EXAMPLE, copy)
    command = next(line for line in ENV_EXAMPLE.read_text().splitlines() if line.startswith("#   for "))
    subprocess.run(["bash", "-c", command.lstrip("# ")], cwd=tmp_path, check=True, timeout=60)
    first = env_lines(copy)
    secrets = {name: first[name] for name in first if SECRET.search(name) and name != "PE_API_KEY"}
    assert all(len(value) >= 44 for value in secrets.values()) and len(set(secrets.values())) == len(secrets)
    assert copy.stat().st_mode & 0o077 == 0
    subprocess.run(["bash", "-c", command.lstrip("# ")], cwd=tmp_path, check=True, timeout=60)
    assert env_lines(copy) == first


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        assert re.search(r":\d[\w.-]*@sha256:[0-9a-f]{64}$", service["image"])
        return
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert service["image"].startswith(f"magi2:{version}-")
    assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", service["build"]["args"]["BASE_IMAGE"])
    assert ":latest" not in service["build"]["args"]["BASE_IMAGE"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_is_watched_or_ends(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    check = service["healthcheck"]
    assert service["restart"] == "unless-stopped"
    assert check["test"][0] in ("CMD", "CMD-SHELL") and {"interval", "timeout", "retries"} <= check.keys()


def test_dependencies_exist_and_are_waited_for() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert SERVICES[other] and how == {"condition": wanted}


def test_volumes_are_declared_and_files_exist() -> None:
    declared = load_compose(example_environment())["volumes"].keys()
    for service in SERVICES.values():
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            if source.startswith("./"):
                assert (REPOSITORY / source).is_file()
            elif not source.startswith("/example/"):
                assert source in declared


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_environment_names_are_known(name: str) -> None:
    service = SERVICES[name]
    settings = {f"MAGI2_{field.upper()}" for field in Settings.__dataclass_fields__}
    others = {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AIRFLOW_HOME", "TMPDIR"),
        *("POOL_MAGI2_CPU", "POOL_MAGI2_GPU1", "POOL_MAGI2_GPU8"),
        *("MTHREADS_VISIBLE_DEVICES", "MTHREADS_DRIVER_CAPABILITIES"),
    }
    if name in ("postgres", "redis"):
        others |= {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_INITDB_ARGS"}
        others |= {"CATALOG_PASSWORD", "REDIS_PASSWORD"}
    unknown = {
        variable
        for variable in service_environment(service)
        if variable not in settings | others and not variable.startswith("AIRFLOW__")
    }
    assert not unknown


@pytest.mark.slow
def test_airflow_settings_are_known_to_airflow() -> None:
    pytest.importorskip("airflow", reason="no Airflow: pip install 'magi2[airflow]'")
    code = (
        "import json, sys; from airflow.configuration import conf;"
        "from airflow.providers_manager import ProvidersManager;"
        "ProvidersManager().initialize_providers_configuration();"
        "print(json.dumps([name for name in json.load(sys.stdin)"
        " if not conf.configuration_description.get(name[0], {}).get('options', {}).get(name[1])]))"
    )
    named = {variable for service in SERVICES.values() for variable in service_environment(service)}
    options = [variable.lower().split("__")[1:] for variable in sorted(named) if variable.startswith("AIRFLOW__")]
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(options), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_workers_hold_no_key_of_airflows_database() -> None:
    for name in ("cpu-worker", "gpu-worker-cuda", "gpu-worker-musa"):
        held = service_environment(SERVICES[name])
        forbidden = (
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
            "AIRFLOW__CORE__FERNET_KEY",
            "AIRFLOW__API_AUTH__JWT_SECRET",
        )
        assert not held.keys() & set(forbidden)


def test_nobody_is_admin_without_a_login() -> None:
    settings = env_lines(AIRFLOW_ENV)
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert SERVICES["airflow-api-server"]["ports"] == ["127.0.0.1:8080:8080"]
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["airflow-api-server"]


def test_heartbeats_give_up_before_the_scheduler_does() -> None:
    settings = env_lines(AIRFLOW_ENV)
    per_failure_s = 14
    gives_up_s = int(settings["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"]) * per_failure_s
    assert gives_up_s < int(settings["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"])


def test_every_pool_has_a_worker_on_the_queue_of_its_name() -> None:
    pools = json.loads((REPOSITORY / "configs" / "deploy" / "pools.json").read_text())
    assert pools.keys() == {"magi2_cpu", "magi2_gpu1", "magi2_gpu8"}
    for cpu, gpu in (("cpu-worker", "gpu-worker-cuda"), ("cpu-worker", "gpu-worker-musa")):
        queues = [SERVICES[name]["command"][SERVICES[name]["command"].index("--queues") + 1] for name in (cpu, gpu)]
        assert set(",".join(queues).split(",")) == pools.keys()
    assert env_lines(AIRFLOW_ENV)["AIRFLOW__OPERATORS__DEFAULT_QUEUE"] == "magi2_cpu"


def test_device_profiles_differ_only_in_image_and_devices() -> None:
    cuda, musa, cpu = (SERVICES[name] for name in ("gpu-worker-cuda", "gpu-worker-musa", "cpu-worker"))
    assert (cuda["profiles"], musa["profiles"]) == (["cuda"], ["musa"]) and "profiles" not in cpu
    (devices,) = cuda["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert musa["runtime"] == "mthreads" and musa["environment"]["MTHREADS_VISIBLE_DEVICES"] == "all"
    assert "vllm-omni:magi-2-preview@sha256:2785b4626d1d" in musa["build"]["args"]["BASE_IMAGE"]
    assert cuda["build"]["args"]["BASE_IMAGE"] == cpu["build"]["args"]["BASE_IMAGE"]
    assert cuda["build"]["args"]["EXTRA"] == "cuda"
    special = {"profiles", "image", "build", "deploy", "runtime", "environment"}
    assert {key: cuda[key] for key in cuda if key not in special} == {
        key: musa[key] for key in musa if key not in special
    }
    assert cuda["shm_size"] == "32gb" and cuda["ulimits"]["memlock"] == -1


def test_browsers_are_not_sent_to_a_store_that_they_cannot_reach() -> None:
    store = open_store(SERVICES["airflow-api-server"]["environment"]["MAGI2_STORE"])
    assert "ports" not in SERVICES["s3"] and store.link_origin is None
