"""`magi2 render` and `magi2 stage`: from prompts to clips, in this process or with a group of ranks for each stage."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from magi2.batches.batch_file import Row, make_batch, read_batch
from magi2.batches.intake import closed_folders
from magi2.cli.console import AS_JSON, TerminalProgress, check_machine, errors, print_json, results, resumable
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.config.strict import nearest
from magi2.errors import CorruptedArtifactError, InputError, Magi2Error, in_one_line
from magi2.inputs.files import InputRoots
from magi2.prompts.figures import parse_image_argument
from magi2.types import CLIP, Clip, StageName

if TYPE_CHECKING:
    from magi2.artifacts.store import ArtifactStore
    from magi2.deployment import Deployment
    from magi2.stages.render import Outcome

MAX_NAME_SHOWN = 40
PROMPT = typer.Option(None, "--prompt", "-p", help="One prompt.")
PROMPTS = typer.Option(None, "--prompts", help="A batch file: .jsonl, .csv or .json.")
IMAGE = typer.Option(None, "--image", "-i", help='First-frame image, or a map such as {"<Figure 1>": "a.png"}.')
USUAL_PROFILE = "1080p"
PROFILE = typer.Option(USUAL_PROFILE, "--profile", help="Profile of configs/profiles, or a path to a .yaml file.")
SEED = typer.Option(None, "--seed", help="0 to 2^53-1; by default derived from the prompt.")
OVERRIDES = typer.Option([], "--set", help="Change a value of the profile, as in refiner.steps=8.")
LAYOUT = typer.Option(
    None, "--layout", help="Spread preview, refine and decode over ranks, as in sp8.cfg1.ep4; by default MAGI2_LAYOUT."
)


def render_command(
    prompt: str | None = PROMPT,
    prompts: Path | None = PROMPTS,
    image: str | None = IMAGE,
    profile: str = PROFILE,
    seed: int | None = SEED,
    out: Path = typer.Option(Path("out"), "--out", "-o", help="Folder for the finished clips."),
    overrides: list[str] = OVERRIDES,
    layout: str | None = LAYOUT,
    from_sidecar: Path | None = typer.Option(
        None, "--from-sidecar", help="The sidecar of a delivered clip, which is rendered again."
    ),
    images: Path | None = typer.Option(
        None, "--images", help="Folder with the images of --from-sidecar that the store has not, under any names."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Render prompts to playable clips. What is in the store already is reused."""
    if from_sidecar is not None:
        if (prompt, prompts, image, seed) != (None,) * 4 or profile != USUAL_PROFILE:
            raise InputError("--from-sidecar says all of the clip: give no prompt, image, profile or seed with it")
        _render_again(from_sidecar, images, out, overrides, layout, as_json=as_json)
        return
    if images is not None:
        raise InputError("--images goes with --from-sidecar", hint="the image of a prompt is given by --image")
    clips, profiles = _clips(prompt, prompts, image, profile, seed, overrides)
    named = {"name": prompts.stem, "source": str(prompts)} if prompts else {}
    from magi2.deployment import Deployment

    _tell(_render(clips, profiles, Deployment.from_environment(), out, layout, **named), as_json=as_json)


def _render_again(
    file: Path, images: Path | None, out: Path, overrides: Sequence[str], layout: str | None, *, as_json: bool
) -> None:
    """The clip of a sidecar, and whether its bytes came out as they were."""
    from magi2.delivery.again import again
    from magi2.delivery.sidecar import read_sidecar
    from magi2.deployment import Deployment
    from magi2.stages.layouts import stage_layout

    sidecar, deployment = read_sidecar(file), Deployment.from_environment()
    with TemporaryDirectory(prefix="magi2-again-") as scratch:
        asked = again(sidecar, deployment, overrides=overrides, images=images, scratch=Path(scratch))
        if not asked.is_own_negative and stage_layout(StageName.PREVIEW, layout, deployment.settings).num_ranks > 1:
            raise InputError(
                "the sidecar's negative prompt is not this deployment's, whose ranks would read their own",
                hint=f"write it into {asked.profile.text.negative_prompt} of MAGI2_CONFIGS, or take --layout sp1",
            )
        profiles = {asked.profile.digest(): asked.profile}
        named = {"name": file.stem, "source": str(file)}
        rendered = _render([asked.clip], profiles, asked.deployment, out, layout, **named)
        for row in rendered.rows:
            key = row.get("key")
            stored = deployment.store.payload(StageName.MUX, key, CLIP).sha256 if key else None
            row["same_bytes"] = stored == sidecar.stored.sha256
            if stored and not row["same_bytes"]:
                made_by = sidecar.stages[StageName.MUX].made_by.get("ffmpeg", "an unknown ffmpeg")
                errors.print(f"warning: the bytes are others than those of {file}, made by {made_by}", style="yellow")
    _tell(rendered, as_json=as_json)


@dataclass
class _Rendered:
    """A row for each clip, the batch, the seconds since the start, and what stopped the render halfway."""

    batch_id: str
    rows: list[dict[str, Any]]
    seconds: float = 0.0
    stopped: Magi2Error | None = None


def _render(
    clips: Sequence[Clip],
    profiles: Mapping[str, Profile],
    deployment: Deployment,
    out: Path,
    layout: str | None,
    **named: str,
) -> _Rendered:
    """Clips made and brought to a folder. An error that stops it is raised only where no clip was made before."""
    started = time.monotonic()
    _make_folder(out)
    from magi2.jobs.render import ClipRender

    check_machine(deployment, _used(clips, profiles))
    with resumable(), TerminalProgress() as progress:
        work = ClipRender(clips, profiles, deployment, **named, layout=layout, progress=progress)
        rendered = _Rendered(work.batch_id, [])
        try:
            with closing(work.render()) as outcomes:
                for outcome in outcomes:
                    rendered.rows.append(_row(outcome, *_exported(deployment.store, outcome, out)))
        except Magi2Error as error:
            if not rendered.rows:
                raise
            rendered.stopped = error  # what was made until now is told all the same
    rendered.seconds = time.monotonic() - started
    return rendered


def _tell(rendered: _Rendered, *, as_json: bool) -> None:
    """Print what became of the clips. Raises what stopped the render, and Exit when clips failed."""
    summary = {**_summary(rendered.rows, rendered.seconds), "batch": rendered.batch_id}
    print_json(summary) if as_json else _print_table(summary)
    if rendered.stopped:
        raise rendered.stopped
    if summary["clips_failed"]:
        raise typer.Exit(1)


def stage_command(
    name: str = typer.Argument(help="enhance, encode, preview, refine, decode or mux."),
    prompt: str | None = PROMPT,
    prompts: Path | None = PROMPTS,
    image: str | None = IMAGE,
    profile: str = PROFILE,
    seed: int | None = SEED,
    overrides: list[str] = OVERRIDES,
    layout: str | None = LAYOUT,
    as_json: bool = AS_JSON,
) -> None:
    """Run one stage of the given prompts; its inputs must be in the store."""

    clips, profiles = _clips(prompt, prompts, image, profile, seed, overrides)

    for resolved in profiles.values():
        names = [stage.value for stage in resolved.stages]
        if name not in names:
            raise InputError(f"profile {resolved.name} has no stage {name!r}", hint=nearest(name, names))
    from magi2.deployment import Deployment
    from magi2.jobs.render import ClipRender

    deployment = Deployment.from_environment()
    check_machine(deployment, _used(clips, profiles))
    with resumable(), TerminalProgress() as progress:
        work = ClipRender(clips, profiles, deployment, layout=layout, progress=progress)
        found = work.run_stage(StageName(name))
    rows = [
        {
            "clip": result.clip.clip_id,
            "state": result.state,
            "key": result.key,
            "flags": list(result.flags),
            "seconds": round(result.seconds, 3),
            "error": in_one_line(result.error) if result.error else None,
        }
        for result in found
    ]
    if as_json:
        print_json({"stage": name, "clips": rows})
    else:
        for row, result in zip(rows, found, strict=True):
            results.print(f"{result.clip.short_id} {name} {result.state} {row['key'] or row['error']}")
    if any(result.state == "failed" for result in found):
        raise typer.Exit(1)


def _clips(
    prompt: str | None,
    prompts: Path | None,
    image: str | None,
    profile: str,
    seed: int | None,
    overrides: Sequence[str],
) -> tuple[tuple[Clip, ...], dict[str, Profile]]:
    """The clips asked for, and their resolved profiles by digest. Raises InputError listing all bad rows."""
    settings = Settings.from_environment()
    profile_of, closed = Profiles(settings.configs, profile, overrides), closed_folders(settings)
    profile_of(None)
    if (prompt is None) == (prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE")
    if prompts is not None:
        if image is not None or seed is not None:
            raise InputError("--image and --seed go with --prompt; a batch file has columns for them")
        batch = read_batch(prompts, profile_of, InputRoots.around(prompts, closed=closed)).require_good()
        profile_of.require_all_applied(clip.profile_digest for clip in batch.clips)
        return batch.clips, profile_of.by_digest
    row = Row(1, {"prompt": prompt, "image": image, "seed": seed, "name": "prompt"})
    images = (Path.cwd() / figure.source for figure in parse_image_argument(image))
    roots = InputRoots.around(*images, closed=closed)
    batch = make_batch([row], profile_of, folder=Path.cwd(), roots=roots)
    if batch.bad_rows:
        raise InputError(batch.bad_rows[0].reason)
    profile_of.require_all_applied(clip.profile_digest for clip in batch.clips)
    return batch.clips, profile_of.by_digest


def _used(clips: Sequence[Clip], profiles: Mapping[str, Profile]) -> list[Profile]:
    """The profiles that these clips have: the default one need not be among them."""
    return [profiles[digest] for digest in dict.fromkeys(clip.profile_digest for clip in clips)]


def _make_folder(out: Path) -> None:
    """Before anything is rendered for it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror or error}") from error


def _exported(store: ArtifactStore, outcome: Outcome, out: Path) -> tuple[dict[str, Path], Magi2Error | None]:
    """The clip's files in `out`, or why they are not there: that is the clip's own failure, not its neighbours'."""
    from magi2.stages.render import export

    if outcome.failure:
        return {}, outcome.failure.error
    try:
        return export(store, outcome, out), None
    except CorruptedArtifactError as error:
        outcome.results[-1] = replace(outcome.results[-1], state="failed", error=error)
        return {}, error
    except Magi2Error as error:  # the clip is stored: another call brings it to a folder that has room
        return {}, error


def _row(outcome: Outcome, files: dict[str, Path], error: Magi2Error | None) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "clip": outcome.clip.clip_id,
        "names": list(outcome.clip.names),
        "profile": outcome.clip.profile_name,
        "seed": outcome.clip.seed,
        "state": "failed" if failure or error else "flagged" if outcome.flags else "done",
        "failed_stage": failure.stage.value if failure else None,
        "error": in_one_line(error) if error else None,
        "flags": list(outcome.flags),
        "key": next((result.key for result in outcome.results if result.stage is StageName.MUX), None),
        "stages": {result.stage.value: result.state for result in outcome.results},
        "seconds": round(sum(result.seconds for result in outcome.results), 3),
        "files": {name: str(path) for name, path in files.items()},
    }


def _summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    states = [state for row in rows for state in row["stages"].values()]
    return {
        "clips": rows,
        "clips_done": sum(row["state"] == "done" for row in rows),
        "clips_flagged": sum(row["state"] == "flagged" for row in rows),
        "clips_failed": sum(row["state"] == "failed" for row in rows),
        "stages_computed": states.count("made"),
        "stages_reused": states.count("reused"),
        "seconds": round(seconds, 1),
    }


def _print_table(summary: dict[str, Any]) -> None:
    """A line a clip, and its file or the reason below, where no terminal is too narrow for a path."""
    cells = [("clip", "name", "profile", "seed", "state", "seconds")]
    for row in summary["clips"]:
        state = " ".join([row["state"], *row["flags"]])
        name = " ".join(row["names"][0].split())[:MAX_NAME_SHOWN]
        cells.append((row["clip"][:12], name, row["profile"], str(row["seed"]), state, f"{row['seconds']:.1f}"))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    told = ["", *(row["error"] or row["files"].get(CLIP, "") for row in summary["clips"])]
    for line, below in zip(cells, told, strict=True):
        results.print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
        if below:
            results.print(f"  {below}")
    counts = " ".join(f"{key}={value}" for key, value in summary.items() if key != "clips")
    results.print(counts)
