"""`magi2 batch`: start batches and steer them, as the page Renders does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from magi2.cli.airflow_api import start_run
from magi2.cli.console import AS_JSON, print_json, results
from magi2.cli.desk import find_batch, open_desk
from magi2.config.settings import Settings
from magi2.errors import InputError
from magi2.inputs.files import InputRoots, text_of
from magi2.inputs.limits import MAX_INLINE_BYTES
from magi2.inputs.refusals import AbsentError, UnreadableError

app = typer.Typer(help="Start batches and steer them, through Airflow where MAGI2_AIRFLOW_URL is set.")
BATCH = typer.Argument(help="Id of a batch, its first characters, or its name.")
_SHOWN = ("name", "state", "requested", "paused_because", "failures", "priority", "budget", "cost", "currency")


@app.command("submit")
def submit(
    file: str | None = typer.Argument(None, help="A batch file where Airflow reads inputs: a path, or s3://..."),
    rows: Path | None = typer.Option(None, "--rows", help="A batch file of this host, whose rows are sent: 1 MiB."),
    name: str | None = typer.Option(None, "--name", help="What the batch is called; by default as its file."),
    profile: str | None = typer.Option(None, "--profile", help="Profile of rows that name none."),
    overrides: list[str] = typer.Option([], "--set", help="Change a value of every profile, as in refiner.steps=8."),
    images: str | None = typer.Option(None, "--images", help="Where relative paths in the file start."),
    target: str | None = typer.Option(None, "--target", help="Where clips are brought whose rows name no target."),
    names: str | None = typer.Option(None, "--names", help="Template of their names there."),
    priority: int | None = typer.Option(None, "--priority", help="Shards of a higher number start first."),
    budget: float | None = typer.Option(None, "--budget", help="What the batch may cost, in MAGI2_CURRENCY."),
    failure_limit: int | None = typer.Option(None, "--failure-limit", min=0, help="Clips that may fail."),
    on_limit: str | None = typer.Option(None, "--on-limit", help="stop or continue, when more did."),
    failure_streak: int | None = typer.Option(
        None, "--failure-streak", min=0, help="Equal failures in a row that pause it; 0: never."
    ),
    on_bad_rows: str | None = typer.Option(None, "--on-bad-rows", help="refuse, or skip and count as failed."),
    matrix: bool = typer.Option(False, "--matrix", help="Render {a|b} in prompts as a clip for each."),
    force: list[str] = typer.Option([], "--force", help="A stage to compute again and compare; may be repeated."),
    as_json: bool = AS_JSON,
) -> None:
    """Start a batch on the Airflow of MAGI2_AIRFLOW_URL; prints the id of its run."""
    from magi2.batches.rerun import DAG_ID

    if (file is None) == (rows is None):
        raise InputError("give either a file that Airflow can read, or --rows FILE")
    asked = {
        "batch": file,
        "rows": _content(rows) if rows else None,
        "name": name or (rows.stem if rows else None),
        "profile": profile,
        "overrides": overrides or None,
        "images": images,
        "delivery_target": target,
        "delivery_name": names,
        "priority": priority,
        "budget": budget,
        "failure_limit": failure_limit,
        "on_limit": on_limit,
        "failure_streak": failure_streak,
        "on_bad_rows": on_bad_rows,
        "matrix": matrix or None,
        "force": force or None,
    }
    conf = {key: value for key, value in asked.items() if value is not None}
    run_id = start_run(Settings.from_environment(), DAG_ID, conf)
    if as_json:
        print_json({"dag_id": DAG_ID, "run_id": run_id})
    else:
        results.print(f"{DAG_ID} {run_id} started")


@app.command("pause")
def pause(batch: str = BATCH, as_json: bool = AS_JSON) -> None:
    """Let nothing of a batch begin until it is resumed."""
    _act(batch, "pause", {}, as_json=as_json)


@app.command("resume")
def resume(batch: str = BATCH, as_json: bool = AS_JSON) -> None:
    """Let a paused batch go on, or one that stopped, once its limit is raised."""
    _act(batch, "resume", {}, as_json=as_json)


@app.command("cancel")
def cancel(batch: str = BATCH, as_json: bool = AS_JSON) -> None:
    """End a batch for good; what is finished stays."""
    _act(batch, "cancel", {}, as_json=as_json)


@app.command("priority")
def priority(
    batch: str = BATCH,
    number: int = typer.Argument(min=-1000, max=1000, help="Shards of a higher number start first."),
    as_json: bool = AS_JSON,
) -> None:
    """Let a batch go before or after others."""
    _act(batch, "priority", {"priority": number}, as_json=as_json)


@app.command("budget")
def budget(
    batch: str = BATCH,
    amount: str = typer.Argument(help="What the batch may cost, in MAGI2_CURRENCY; none: whatever it will."),
    as_json: bool = AS_JSON,
) -> None:
    """Let no shard of a batch begin once it has cost so much."""
    try:
        value = None if amount == "none" else float(amount)
    except ValueError:
        raise InputError(f"the budget is {amount!r}", hint="give an amount, or none") from None
    _act(batch, "budget", {"budget": value}, as_json=as_json)


@app.command("limit")
def limit(
    batch: str = BATCH,
    number: int = typer.Argument(min=0, max=1_000_000, help="Clips that may fail."),
    as_json: bool = AS_JSON,
) -> None:
    """Let so many clips of a batch fail before it stops, or counts as failed."""
    _act(batch, "limit", {"failure_limit": number}, as_json=as_json)


@app.command("delete")
def delete(
    batch: str = BATCH,
    yes: bool = typer.Option(False, "--yes", help="Really delete; otherwise only say what would go."),
    as_json: bool = AS_JSON,
) -> None:
    """Remove a batch that has ended, and what only it made; clips that were brought to targets stay there."""
    desk = open_desk()
    gone = desk.act(find_batch(desk, batch), "delete", {"confirm": yes})
    if as_json:
        print_json(gone)
        return
    artifacts = ", ".join(f"{count} {stage}" for stage, count in gone["artifacts"].items()) or "no artifacts"
    verb = "would remove" if gone["dry_run"] else "removed"
    size = f"{gone['freed_bytes'] / 1e9:.3f} GB"
    results.print(f"{verb} batch {gone['batch_id']}: {artifacts}, {size}, {gone['documents']} documents")
    results.print(f"{gone['kept']} artifacts stay: captions, and what other batches need; so do clips at targets")
    if gone["dry_run"]:
        results.print("nothing was removed: --yes does it")


def _act(wanted: str, action: str, values: Mapping[str, Any], *, as_json: bool) -> None:
    desk = open_desk()
    batch = desk.act(find_batch(desk, wanted), action, values)
    told = {name: batch.get(name) for name in ("batch_id", *_SHOWN, "failure_limit", "is_stopped")}
    if as_json:
        print_json({"action": action, **told})
        return
    asked = f", asked to {told['requested']}" if told["requested"] else ""
    facts = [f"{told['failures']}", f"priority {told['priority']}"]
    facts += [f"budget {told['budget']}"] if told["budget"] is not None else []
    results.print(f"{told['batch_id']} {told['name']}: {told['state']}{asked}; {', '.join(facts)}")


def _content(file: Path) -> str:
    """The text of a batch file that is sent. Raises InputError for one that is none or too long."""
    try:
        content = InputRoots.around(file).read(file, MAX_INLINE_BYTES)
    except AbsentError as error:
        raise InputError(f"{file}: {error}") from None
    except UnreadableError as error:
        hint = f"--rows sends {MAX_INLINE_BYTES:,} at most: put a larger file where Airflow reads inputs"
        raise InputError(f"{file}: {error}", hint=hint) from None
    return text_of(content, str(file), in_rows=True)
