"""Airflow's API as the page's actions ask it: what was asked, and an answer."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

TRIGGER = "/api/v2/dags/magi2_render_batch/dagRuns"


class FakeAirflow:
    """Writes down what it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.answer: tuple[int, Any] = (200, {"dag_run_id": "manual__new+run"})
        self.app = FastAPI()
        self.app.add_api_route("/{path:path}", self._hear, methods=["GET", "POST", "PATCH"])

    async def _hear(self, request: Request) -> JSONResponse:
        path = request.scope["raw_path"].decode()
        body = None if request.method == "GET" else await request.json()
        self.asked.append((request.method, path, body, request.headers.get("authorization")))
        return JSONResponse(self.answer[1], self.answer[0])
