"""What this project adds to Airflow: the page "Renders", in the navigation and as a tab on runs and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from magi2_airflow.ahead import import_for_tasks
from magi2_airflow.configuration import SECTION, export_section
from magi2_airflow.mount import MOUNT, READY, STATIC

Message = MutableMapping[str, Any]

NAME = "Renders"
"""The label, and the global variable in which the bundle leaves its component."""
ROUTES = {"nav": "renders", "dag_run": "run_renders", "task_instance": "task_renders"}
"""Where the page is shown, and its part of the address there."""


async def serve(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The routes of `magi2_airflow.renders`, imported by the first request: tasks load plugins too and never serve."""
    from magi2_airflow.renders.app import app, open_app

    is_open = str(scope.get("path", "")).endswith(READY)
    await (open_app if is_open else app)(scope, receive, send)


def react_app(destination: str, route: str) -> dict[str, str]:
    """One place of the page. The bundle's address changes with its content, since browsers load it once."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + MOUNT
    files = b"".join(path.read_bytes() for path in sorted(STATIC.glob("renders.*")))
    place = {"name": NAME, "destination": destination, "url_route": route}
    icons = {"icon": f"{base}/static/icon.svg", "icon_dark_mode": f"{base}/static/icon_dark.svg"}
    return {**place, **icons, "bundle_url": f"{base}/static/renders.js?v={sha256(files).hexdigest()[:12]}"}


class RendersPlugin(AirflowPlugin):
    """Mounts the routes at /renders and puts the page where people look for it."""

    name = "magi2_renders"
    fastapi_apps = [{"app": serve, "url_prefix": MOUNT, "name": NAME}]  # noqa: RUF012  Airflow's form
    react_apps = [react_app(*place) for place in ROUTES.items()]  # noqa: RUF012

    @classmethod
    def on_load(cls, *arguments: Any, **options: Any) -> None:
        """Every process of Airflow's that loads plugins, tasks among them, knows the section [magi2]."""
        export_section(lambda name: conf.get(SECTION, name, fallback=None))
        import_for_tasks()
