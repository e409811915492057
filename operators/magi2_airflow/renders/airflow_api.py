"""Airflow's own REST API, asked in this process with the caller's credential: it checks, does and logs as always."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import httpx
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from fastapi import Depends, HTTPException, Request

from magi2.errors import InfrastructureError


def airflow_app() -> Any:
    """The API server that this app is a part of."""
    from airflow.api_fastapi.main import app  # the running one; importing it any earlier would make a second

    return app


class Airflow:
    """The REST API as the caller of a request may use it. All raise HTTPException with what Airflow refuses."""

    def __init__(self, app: Any, request: Request) -> None:
        self._app = app
        token = request.cookies.get(COOKIE_NAME_JWT_TOKEN)
        given = request.headers.get("authorization") or (f"Bearer {token}" if token else None)
        self._headers = {"Authorization": given} if given else {}

    async def trigger(self, dag_id: str, conf: dict[str, Any], note: str) -> str:
        """Start a run; its id."""
        body = {"logical_date": None, "conf": conf, "note": note}
        answer = await self._send("POST", f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns", body)
        run_id = self._content(answer).get("dag_run_id")
        if not isinstance(run_id, str):
            raise InfrastructureError("Airflow answered without the id of the run that it was asked for")
        return run_id

    async def end_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a run failed, which ends its tasks. A run that is gone needs no end."""
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        answer = await self._send("PATCH", path, {"state": "failed", "note": note})
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._content(answer)

    async def go_on(self, dag_id: str, run_id: str) -> None:
        """Run the tasks of a run again that were skipped, and those that follow them."""
        path = f"/api/v2/dags/{quote(dag_id, safe='')}"
        run = f"{path}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        skipped = self._content(await self._send("GET", f"{run}?state=skipped&limit=1000"))["task_instances"]
        tasks = sorted({task["task_id"] for task in skipped})
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": tasks, "only_failed": False}
        answer = await self._send("POST", f"{path}/clearTaskInstances", {**body, "include_downstream": True})
        self._content(answer)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow", headers=self._headers) as client:
            return await client.request(method, path, json=body)

    @staticmethod
    def _content(answer: httpx.Response) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError as error:
            raise InfrastructureError(f"Airflow answered {answer.status_code} with what is no JSON") from error
        if not answer.is_success:
            detail = content.get("detail", content) if isinstance(content, dict) else content
            raise HTTPException(answer.status_code, detail)
        if not isinstance(content, dict):
            raise InfrastructureError(f"Airflow answered {answer.status_code} with what is no object")
        return content


def airflow_of(request: Request, app: Annotated[Any, Depends(airflow_app)]) -> Airflow:
    """Airflow as this request's caller may use it."""
    return Airflow(app, request)


AsCaller = Annotated[Airflow, Depends(airflow_of)]
