"""Where wishes for batches go: to the page Renders of an Airflow, or without one straight to the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from magi2.cli.airflow_api import AirflowApi
from magi2.config.settings import Settings
from magi2.config.strict import nearest
from magi2.errors import ConfigError, InputError

_ROUTES = "/renders/api/batches"
_LISTED = 100


class Desk(Protocol):
    """Does what people ask of batches. All raise what the catalog, or Airflow in its place, refuses."""

    def batches(self, text: str = "") -> dict[str, str]:
        """Names of the newest batches by id, of those whose id, name or source has the text."""

    def act(self, batch_id: str, action: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Do it, with what belongs to it; the batch as it stands then, or what of it was deleted."""


def open_desk() -> Desk:
    """The desk of this deployment. Raises as `AirflowApi.of` does."""
    settings = Settings.from_environment()
    return AirflowDesk(AirflowApi.of(settings)) if settings.airflow_url else CatalogDesk()


def find_batch(desk: Desk, wanted: str) -> str:
    """The id of the batch that is meant by an id, the first characters of one, or a name that only one batch has.

    Raises InputError that names others where there is none, or several.
    """
    known = desk.batches(wanted)
    for found in (
        [batch_id for batch_id in known if batch_id == wanted],
        [batch_id for batch_id in known if batch_id.startswith(wanted)],
        [batch_id for batch_id, name in known.items() if name == wanted],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"{wanted!r} is {len(found)} batches", hint=f"give one's id: {', '.join(found[:5])}")
    newest = desk.batches()
    hint = nearest(wanted, [*newest, *newest.values()]) if newest else "magi2 status lists them"
    raise InputError(f"there is no batch {wanted!r}", hint=hint)


class AirflowDesk:
    """The routes of the page, as the user of MAGI2_AIRFLOW_USER, whose rights they check."""

    def __init__(self, api: AirflowApi) -> None:
        self._api = api

    def batches(self, text: str = "") -> dict[str, str]:
        """See `Desk.batches`."""
        answer = self._api.ask("GET", _ROUTES, params={"text": text, "limit": str(_LISTED)})
        return {batch["batch_id"]: batch["name"] for batch in answer.get("batches", [])}

    def act(self, batch_id: str, action: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `Desk.act`."""
        answer = self._api.ask("POST", f"{_ROUTES}/{quote(batch_id, safe='')}/{action}", values)
        batch: dict[str, Any] = answer.get("batch", answer)
        if "is_paused" in batch:
            batch["requested"] = "pause" if batch["is_paused"] else "cancel" if batch["is_cancel_requested"] else None
        return batch


class CatalogDesk:
    """The catalog of this deployment, for batches of the command line: those of Airflow obey its rights."""

    def __init__(self) -> None:
        from magi2.deployment import Deployment

        self._deployment = Deployment.from_environment()
        self._catalog = self._deployment.catalog

    def batches(self, text: str = "") -> dict[str, str]:
        """See `Desk.batches`."""
        found = self._catalog.batches.search(text=text or None, limit=_LISTED)
        return {batch.batch_id: batch.name for batch in found.rows}

    def act(self, batch_id: str, action: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `Desk.act`."""
        batch = self._catalog.batches.get(batch_id)
        if batch is not None and batch.run_id is not None:
            hint = "set MAGI2_AIRFLOW_URL, as for magi2 rerun"
            raise ConfigError(f"batch {batch_id} is rendered by Airflow, which decides who may {action} it", hint=hint)
        self._deployment.require_match()
        if action == "delete":
            return self._delete(batch_id, confirm=values["confirm"])
        self._ask(batch_id, action, values)
        return self._standing(batch_id)

    def _ask(self, batch_id: str, action: str, values: Mapping[str, Any]) -> None:
        from magi2.catalog.records import Actor, BatchState
        from magi2.config.price import price_for_budget
        from magi2.jobs.by_hand import user_name

        control, by = self._catalog.control, Actor(user_name(), user_name())
        match action:
            case "pause":
                control.pause(batch_id, by=by)
            case "resume":
                control.resume(batch_id, by=by)
            case "cancel":
                control.cancel(batch_id, by=by)
                self._catalog.batches.mark(batch_id, BatchState.CANCELLED)
            case "priority":
                control.set_priority(batch_id, values["priority"], by=by)
            case "budget":
                if values["budget"] is not None:
                    price_for_budget(self._deployment.settings)
                control.set_budget(batch_id, values["budget"], by=by)
            case "limit":
                control.set_limit(batch_id, values["failure_limit"], by=by)

    def _standing(self, batch_id: str) -> dict[str, Any]:
        from datetime import UTC, datetime

        from magi2.report.status import batch_status

        return batch_status(self._catalog, batch_id, self._deployment.price, at=datetime.now(UTC)).to_json()

    def _delete(self, batch_id: str, *, confirm: bool) -> dict[str, Any]:
        from magi2.jobs.delete import delete

        return {"batch_id": batch_id, **delete(self._deployment, batch_id, dry_run=not confirm).to_json()}
