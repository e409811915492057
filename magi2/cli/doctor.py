"""`magi2 doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import typer

from magi2.batches.rerun import DAG_ID
from magi2.cli.airflow import deployed_pools, find_pool
from magi2.cli.airflow_api import AirflowApi
from magi2.cli.console import AS_JSON, print_json, results
from magi2.config.load import load_negative_prompt, load_profile, profile_names
from magi2.config.settings import Settings
from magi2.delivery.targets import Targets
from magi2.errors import ConfigError, InfrastructureError, InputError, Magi2Error, in_one_line
from magi2.media.delivery import DeliverySpec
from magi2.models.preview.config import BF16

UPSTREAM_NEGATIVE_PROMPT = "5ac0746de6c7e0388a16122d9c7e751b1cb067242218bf6f41ec1e88271cdcb9"
"""SHA-256 of the negative prompt that the published code uses; the text is not part of this project."""

_USUAL = "1080p"


@dataclass(frozen=True)
class Finding:
    """One thing that was tried. `works` is None for a choice that is neither right nor wrong."""

    what: str
    works: bool | None
    says: str


def doctor_command(
    profile: str | None = typer.Option(
        None, "--profile", help="The profile that you want to run; by default 1080p, or the first that the weights fit."
    ),
    airflow: bool = typer.Option(
        False, "--airflow", help="Also ask the Airflow of MAGI2_AIRFLOW_URL for pools, plugin, DAGs and workers."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Try accelerator, torchada, ffmpeg, store, weights, endpoint and profile, without rendering anything."""
    findings = []
    settings = Settings.from_environment()
    found = _examine(settings, profile or _fitting_profile(settings))
    for finding in chain(found, _examine_airflow(settings)) if airflow else found:
        findings.append(finding)
        if not as_json:
            mark = {True: "ok  ", False: "BAD ", None: "--  "}[finding.works]
            results.print(f"{mark}{finding.what:<17}{finding.says}")
    bad = [finding.what for finding in findings if finding.works is False]
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings], "healthy": not bad})
    if bad:
        raise typer.Exit(1)


def _fitting_profile(settings: Settings) -> str:
    """The profile that people mean who name none: the one that the weights are made for, else the usual one."""
    from magi2.checkpoints.fit import fitting_profile
    from magi2.checkpoints.layout import CheckpointFolder

    fitting = fitting_profile(CheckpointFolder(settings.ckpt_root), settings.configs) if settings.ckpt_root else None
    return fitting or _USUAL


def _examine(settings: Settings, profile: str) -> Iterator[Finding]:
    checks: list[tuple[str, Callable[[Settings, str], Finding]]] = [
        ("profile", _profile),
        ("negative prompt", _negative_prompt),
        ("accelerator", _accelerator),
        ("torchada", _torchada),
        ("ffmpeg", _ffmpeg),
        ("marks", _marks),
        ("signatures", _signatures),
        ("libraries", _libraries),
        ("kernels", _kernels),
        ("store", _store),
        ("weights", _weights),
        ("endpoint", _endpoint),
        *([("targets", _targets)] if settings.delivery_targets else []),
    ]
    for what, check in checks:
        try:
            yield check(settings, profile)
        except Magi2Error as error:
            yield Finding(what, False, str(error))
        except Exception as error:  # a fault of ours, or of a library, keeps nobody from the other lines
            yield Finding(what, False, f"unforeseen {type(error).__name__}: {in_one_line(error)}")


def _examine_airflow(settings: Settings) -> Iterator[Finding]:
    try:
        yield from ask_airflow(settings)
    except Magi2Error as error:
        yield Finding("airflow", False, str(error))


def ask_airflow(settings: Settings) -> Iterator[Finding]:
    """What runs would wait for in silence: pools are asked for by name, the rest is said by the page's own server.

    Raises: as `AirflowApi` does.
    """
    api = AirflowApi.of(settings)
    version = api.text(api.ask("GET", "/api/v2/version"), "version")
    yield Finding("airflow", True, f"{api.place}, version {version}")
    pools = {name: find_pool(api, name) for name in deployed_pools()}
    missing = [name for name, pool in pools.items() if pool is None]
    slots = ", ".join(f"{name} {pool['slots']}" for name, pool in pools.items() if pool)
    hint = f"there is no {', '.join(missing)}: tasks in it wait for ever (magi2 airflow setup creates them)"
    yield Finding("pools", not missing, hint if missing else f"slots: {slots}")
    yield _dag_finding(api.find(f"/api/v2/dags/{DAG_ID}"))
    try:
        found = api.ask("GET", "/renders/api/airflow")
    except (InputError, InfrastructureError) as error:  # a path that no plugin serves has a page of Airflow's own
        why = f"install magi2 where the API server runs, and start it again: {error}"
        yield Finding("plugin", False, why)
        return
    yield Finding("plugin", True, "the page Renders is there")
    problems = [problem for problem in found["problems"] if "no pool" not in problem]
    yield Finding("runs", not problems, "; ".join(problems) or "nothing that they would wait for")


def _dag_finding(dag: dict[str, Any] | None) -> Finding:
    if dag is None:
        return Finding("dag", False, f"Airflow has not read {DAG_ID}: is the folder of our DAGs one of its bundles?")
    if dag["is_paused"]:
        return Finding("dag", None, f"{DAG_ID} is paused: its runs wait until somebody switches it on")
    return Finding("dag", True, f"{DAG_ID} is on")


def _profile(settings: Settings, profile: str) -> Finding:
    resolved = load_profile(profile, settings.configs)
    others = ", ".join(profile_names(settings.configs))
    return Finding("profile", True, f"{resolved.name} {resolved.digest()[:12]}; there are {others}")


def _negative_prompt(settings: Settings, profile: str) -> Finding:
    text = load_negative_prompt(load_profile(profile, settings.configs), settings.configs)
    if text is None:
        return Finding("negative prompt", None, "switched off in the profile")
    digest = hashlib.sha256(text.encode()).hexdigest()
    kind = "the published one" if digest == UPSTREAM_NEGATIVE_PROMPT else "not the published one"
    return Finding("negative prompt", True, f"{len(text)} characters, SHA-256 {digest[:12]}: {kind}")


def _accelerator(settings: Settings, profile: str) -> Finding:
    from magi2 import platform

    accelerator = platform.current(settings.device)
    if accelerator.name == "cpu":
        return Finding("accelerator", None, "none: only tiny checkpoints are practical on a CPU")
    total = platform.memory_stats(accelerator=accelerator).total
    return Finding("accelerator", True, f"{accelerator.name}, {total / 2**30:.0f} GiB")


def _targets(settings: Settings, profile: str) -> Finding:
    targets = Targets.of(settings)
    told = (
        "is for Airflow to open" if targets.is_airflows(name) else targets.open(name).check() for name in targets.names
    )
    return Finding(
        "targets", True, "; ".join(f"{name}: {says}" for name, says in zip(targets.names, told, strict=True))
    )


def _torchada(settings: Settings, profile: str) -> Finding:
    from importlib.util import find_spec

    from magi2 import platform

    installed = find_spec("torchada") is not None
    if platform.current(settings.device).name != "musa":
        return Finding("torchada", None, "needed on MUSA only" + (", installed" if installed else ""))
    return Finding("torchada", installed, "installed" if installed else "missing: pip install 'magi2[musa]'")


def _ffmpeg(settings: Settings, profile: str) -> Finding:
    from magi2.media.fitness import fit_ffmpeg

    try:
        delivery = load_profile(profile, settings.configs).delivery
    except ConfigError:  # which has a line of its own
        delivery = DeliverySpec()
    ffmpeg = fit_ffmpeg(settings.ffmpeg, delivery)
    instead = f"; passed over: {ffmpeg.passed_over}" if ffmpeg.passed_over else ""
    return Finding(
        "ffmpeg", True, f"{ffmpeg.path} {ffmpeg.version} delivers, with {delivery.encoder}, ffv1, aac{instead}"
    )


def _signatures(settings: Settings, profile: str) -> Finding:
    from magi2.delivery.credentials import check_signing

    says = check_signing(settings)
    return Finding("signatures", True if says else None, says or "none are made (MAGI2_C2PA_CERTIFICATE is not set)")


def _marks(settings: Settings, profile: str) -> Finding:
    from magi2.recipes.marking import marking_of, producer_line

    try:
        resolved = load_profile(profile, settings.configs)
    except ConfigError:  # which has a line of its own
        return Finding("marks", None, producer_line(settings.content_producer))
    marking = marking_of(resolved, settings)
    label = f"; the label is set in {marking.font.path}" if marking.font else ""
    return Finding("marks", True if marking.producer else None, f"{producer_line(marking.producer)}{label}")


def _libraries(settings: Settings, profile: str) -> Finding:
    from magi2.stages.software import libraries

    return Finding("libraries", True, ", ".join(f"{name}: {version}" for name, version in libraries().items()))


def _kernels(settings: Settings, profile: str) -> Finding:
    from magi2 import platform
    from magi2.stages.software import kernels_of

    resolved = load_profile(profile, settings.configs)
    if resolved.compute.weights != BF16:
        refusal = platform.fp8_refusal(accelerator=platform.current(settings.device))
        if refusal:
            return Finding("kernels", False, refusal)
    return Finding("kernels", True, kernels_of(resolved, settings))


def _store(settings: Settings, profile: str) -> Finding:
    from magi2.catalog.engine import catalog_url, is_made, shared_place
    from magi2.deployment import Deployment

    deployment = Deployment(settings)
    says = deployment.store.self_test()
    url = catalog_url(settings)
    if is_made(url) and (mismatch := deployment.mismatch()):
        return Finding("store", False, mismatch)
    if warning := shared_place(url):
        return Finding("store", None, f"{says}; {warning}")
    return Finding("store", True, says)


def _weights(settings: Settings, profile: str) -> Finding:
    from magi2.checkpoints.fit import require_fit
    from magi2.checkpoints.layout import CheckpointFolder
    from magi2.checkpoints.verify import verify

    root = settings.checkpoint_root()
    resolved = load_profile(profile, settings.configs)
    require_fit(resolved, CheckpointFolder(root), settings.configs)
    reports = list(verify(root, resolved.architectures, fingerprint=False))
    if bad := [report for report in reports if report.problem]:
        return Finding("weights", False, f"{root}: {bad[0].problem}")
    size = sum(report.size_bytes for report in reports)
    names = profile_names(settings.configs)
    fitting = [name for name in names if load_profile(name, settings.configs).architectures == resolved.architectures]
    says = f"{root}: {len(reports)} components, {size / 1e9:.2f} GB, for {', '.join(fitting) or profile}"
    if any(report.hollow for report in reports):
        return Finding("weights", None, f"{says}; hollow: names and sizes without values, nothing is rendered from it")
    return Finding("weights", True, says)


def _endpoint(settings: Settings, profile: str) -> Finding:
    from magi2.recipes.load import endpoint_settings

    endpoint = endpoint_settings(settings)
    if endpoint is None:
        return Finding("endpoint", None, "none: prompts pass as written (set MAGI2_PE_API_KEY or MAGI2_PE_BASE_URL)")
    return Finding("endpoint", None, f"{endpoint.base_url} with model {endpoint.model}, not asked")
