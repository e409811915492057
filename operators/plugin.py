"""What this project adds to Airflow's API server: the pages behind the buttons of our tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

Message = MutableMapping[str, Any]


async def serve(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The routes of `operators.renders`, imported by the first request: tasks load plugins too and never serve."""
    from operators.renders import app

    await app(scope, receive, send)


class RendersPlugin(AirflowPlugin):
    """Mounts the routes at /renders."""

    name = "magi2_renders"
    fastapi_apps = [{"app": serve, "url_prefix": "/renders", "name": "Renders"}]  # noqa: RUF012  Airflow's form
