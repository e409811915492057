"""Whether this Airflow and this worker have what a batch needs: asked by the plan task, before anything is planned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from magi2.errors import ConfigError, Magi2Error
from magi2_airflow.base import has_supervisor
from magi2_airflow.mount import READY

if TYPE_CHECKING:
    from magi2.deployment import Deployment

logger = logging.getLogger(__name__)

_ANSWER_S = 15.0
_EXECUTION = "/execution/"


def require_airflow() -> None:
    """Return if the stages of a batch can run in this Airflow; what may come yet is told in the log.

    Raises: ConfigError when it lacks a pool, in which tasks would wait for ever without a word.
    """
    if not has_supervisor():
        return  # in `dag.test` there is no API server, and pools are not heeded
    ready = ask_server()
    if ready is None:
        return
    if missing := ready["missing_pools"]:
        raise ConfigError(
            f"Airflow has no pool {', '.join(missing)}: the batch's tasks would wait for ever",
            hint="magi2 airflow setup creates them",
        )
    if idle := ready["queues_without_worker"]:
        logger.error("no worker serves the queue %s: its tasks wait until one is started", ", ".join(idle))


def tell_of_catalog(deployment: Deployment) -> None:
    """Say in the log if this worker does not reach the catalog: the batch is rendered, and no page shows it."""
    try:
        deployment.catalog  # noqa: B018  opened, and kept open for what follows
    except Magi2Error as error:
        logger.error("the catalog is not reached from this worker, so the page Renders lacks the batch: %s", error)


def ask_server() -> dict[str, Any] | None:
    """What the API server says of itself; None, with a line in the log, when it does not say."""
    import httpx
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="http://localhost:8080").rstrip("/")
    execution = conf.get("core", "execution_api_server_url", fallback=f"{base}{_EXECUTION}")
    url = execution.rstrip("/").removesuffix(_EXECUTION.rstrip("/")) + READY
    try:
        answer = httpx.get(url, timeout=_ANSWER_S)
    except httpx.HTTPError as error:
        logger.warning("%s: nobody says whether Airflow has pools and workers: %s", url, error)
        return None
    if not answer.is_success or not answer.headers.get("content-type", "").startswith("application/json"):
        logger.error(
            "%s answers %d: the API server has not loaded the plugin magi2_renders, so there is no page Renders: "
            "install magi2 where it runs, and start it again",
            url,
            answer.status_code,
        )
        return None
    return dict(answer.json())
