"""Who may use the routes: people logged in to Airflow, by what its auth manager lets them do with our DAG's runs.

Airflow protects no route of a plugin by itself, so `app` names `get_user` and `same_origin` for all of them at once.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import HTTPException, Request

from magi2.batches.rerun import DAG_ID

Method = Literal["GET", "POST", "PUT", "DELETE"]


async def same_origin(request: Request) -> None:
    """Refuse what changes something when a page of another origin asks: cookies alone do not tell who that is.

    Browsers send Sec-Fetch-Site where a page is trustworthy (HTTPS, localhost) and Origin with every such request;
    scripts, which bring a token instead of a cookie, send neither.
    """
    if request.method in ("GET", "HEAD"):
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    ours = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {None, ""}
    if site != "same-origin" if site else bool(origin) and urlsplit(origin or "").netloc not in ours:
        raise HTTPException(403, "a page of another site may not ask for this")


def may_read(user: GetUserDep) -> None:
    """Refuse people who may not read our runs."""
    _require(user, "GET", f"you may not read the runs of {DAG_ID}")


def may_start(user: GetUserDep) -> None:
    """Refuse people who may not trigger our DAG."""
    _require(user, "POST", f"you may not trigger {DAG_ID}")


def may_change(user: GetUserDep) -> None:
    """Refuse people who may not edit our runs."""
    _require(user, "PUT", f"you may not change the runs of {DAG_ID}")


def may_delete(user: GetUserDep) -> None:
    """Refuse people who may not delete our runs."""
    _require(user, "DELETE", f"you may not delete the runs of {DAG_ID}")


def is_allowed(user: BaseUser, method: Method) -> bool:
    """Whether Airflow lets the user read (GET), trigger (POST), edit (PUT) or DELETE our runs."""
    team = DagModel.get_team_name(DAG_ID) if conf.getboolean("core", "multi_team") else None
    details = DagDetails(id=DAG_ID, team_name=team)
    answer = get_auth_manager().is_authorized_dag(
        method=method, access_entity=DagAccessEntity.RUN, details=details, user=user
    )
    return bool(answer)


def _require(user: BaseUser, method: Method, refusal: str) -> None:
    if not is_allowed(user, method):
        raise HTTPException(403, refusal)
