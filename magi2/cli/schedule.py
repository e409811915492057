"""`magi2 schedule`: schedules of the preview for a share of its evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from magi2.cli.console import AS_JSON, TerminalProgress, check_machine, errors, print_json, results
from magi2.cli.render import OVERRIDES, PROFILE, Asked, clips_of
from magi2.errors import InputError
from magi2.files import partial_file
from magi2.types import StageName

app = typer.Typer(help="Find schedules of the preview.", no_args_is_help=True)


@app.callback()
def schedules() -> None:
    """Schedules of the preview: the same clip for fewer evaluations."""


@app.command("find")
def find(
    prompts: str = typer.Option(..., "--prompts", help="A batch file, as of `magi2 render`."),
    profile: str = PROFILE,
    overrides: list[str] = OVERRIDES,
    shares: list[float] = typer.Option([0.6, 0.4], "--share", help="Of the evaluations; may be given several times."),
    others: int = typer.Option(2, "--others", min=1, help="The last rows: they only confirm what is found."),
    trials: int = typer.Option(24, "--trials", min=1, help="Schedules that are run for each share."),
    out: Path = typer.Option(Path("schedule.json"), "--out", "-o", help="The report."),
    as_json: bool = AS_JSON,
) -> None:
    """Find the schedules that move these prompts' latents least, and confirm them on other prompts."""
    for share in shares:
        if not 0 < share < 1:
            raise InputError(f"--share is {share}, must be between 0 and 1")
    clips, profiles = clips_of(Asked(None, prompts, None, profile, None, overrides, None))
    if len(profiles) > 1 or len(clips) <= others:
        raise InputError(f"{prompts}: the search needs more than {others} clips, all of one profile")
    from magi2.deployment import Deployment
    from magi2.jobs.render import ClipRender
    from magi2.stages.schedule_search import ScheduleSearch

    deployment = Deployment.from_environment()
    check_machine(deployment, list(profiles.values()), clips)
    with TerminalProgress() as progress:
        work = ClipRender(clips, profiles, deployment, progress=progress)
        for stage in (StageName.ENHANCE, StageName.ENCODE):
            for result in work.run_stage(stage):
                if result.error:
                    raise result.error
    (context,) = work.contexts().values()
    search = ScheduleSearch(context, clips[:-others], clips[-others:], tell=errors.print)
    found = [search.find(share, trials=trials) for share in shares]
    resolved = context.book.profile
    report: dict[str, Any] = {
        "profile": resolved.name,
        "settings": resolved.preview.model_dump(mode="json", exclude={"tiers"}),
        "weights": context.weights["preview"],
        "found": [each.to_json() for each in found],
    }
    with partial_file(out) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        for each in found:
            said = "confirmed" if each.is_confirmed else "NOT CONFIRMED"
            results.print(
                f"{each.share:.3f} of the evaluations, {said} on {others} other clips: {each.schedule.to_json()}"
            )
    if not all(each.is_confirmed for each in found):
        raise typer.Exit(1)
