"""`magi2 render` and `magi2 stage`: from prompts to clips, in this process or with a group of ranks for each stage."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from magi2.batches.batch_file import make_batch, read_batch
from magi2.batches.input_roots import user_roots
from magi2.batches.intake import location_of
from magi2.batches.placing import Placing
from magi2.batches.plan import BatchOptions
from magi2.batches.rows import Row
from magi2.batches.spread import NO_SPREAD, Spread, parse_seeds
from magi2.cli.console import AS_JSON, TerminalProgress, check_machine, errors, print_json, results, resumable
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.config.strict import nearest
from magi2.delivery.names import DELIVERED, OUT, companion
from magi2.delivery.targets import Targets
from magi2.errors import InputError, Magi2Error, in_one_line
from magi2.inputs.files import folder_of
from magi2.inputs.objects import location_in
from magi2.prompts.figures import parse_image_argument
from magi2.quality.defects import Judgement, judge
from magi2.quality.measures import Measures
from magi2.quality.thresholds import Thresholds
from magi2.types import ARTIFACT_STAGES, CLIP, Clip, StageName

if TYPE_CHECKING:
    from magi2.batches.schema import Receipt
    from magi2.deployment import Deployment
    from magi2.stages.render import Outcome

MAX_NAME_SHOWN = 40
PROMPT = typer.Option(None, "--prompt", "-p", help="One prompt.")
PROMPTS = typer.Option(
    None, "--prompts", help="A batch file: .jsonl, .csv, .tsv, .json or .parquet, or its s3:// address."
)
IMAGE = typer.Option(None, "--image", "-i", help='First-frame image, or a map such as {"<Figure 1>": "a.png"}.')
USUAL_PROFILE = "1080p"
PROFILE = typer.Option(USUAL_PROFILE, "--profile", help="Profile of configs/profiles, or a path to a .yaml file.")
SEED = typer.Option(None, "--seed", help="0 to 2^53-1; by default derived from the prompt.")
OVERRIDES = typer.Option([], "--set", help="Change a value of the profile, as in refiner.steps=8.")
OUT_FOLDER = typer.Option(
    None, "--out", "-o", help="Folder for finished clips; without it the target of row or profile, else the folder out."
)
LAYOUT = typer.Option(
    None, "--layout", help="Spread preview, refine and decode over ranks, as in sp8.cfg1.ep4; by default MAGI2_LAYOUT."
)


def render_command(
    prompt: str | None = PROMPT,
    prompts: str | None = PROMPTS,
    image: str | None = IMAGE,
    profile: str = PROFILE,
    seed: int | None = SEED,
    out: Path | None = OUT_FOLDER,
    overrides: list[str] = OVERRIDES,
    layout: str | None = LAYOUT,
    from_sidecar: Path | None = typer.Option(
        None, "--from-sidecar", help="The sidecar of a delivered clip, which is rendered again."
    ),
    images: Path | None = typer.Option(
        None, "--images", help="Folder with the images of --from-sidecar that the store has not, under any names."
    ),
    name: str | None = typer.Option(None, "--name", help="What the batch is called; by default as its file."),
    seeds: str | None = typer.Option(None, "--seeds", help="A clip for each, as in 1,2,3, of rows that have none."),
    matrix: bool = typer.Option(False, "--matrix", help="Render {a|b} in prompts as a clip for each."),
    force: bool = typer.Option(False, "--force", help="Compute every stage again and compare it with what is stored."),
    failure_limit: int = typer.Option(
        0, "--failure-limit", min=0, help="Clips that may fail; from 1 on the render stops when more did."
    ),
    on_limit: str | None = typer.Option(None, "--on-limit", help="stop or continue, when more failed."),
    failure_streak: int = typer.Option(
        0,
        "--failure-streak",
        min=0,
        help="Equal failures in a row that pause it until magi2 batch resume; 0: never.",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Render prompts to playable clips. What is in the store already is reused, unless --force is given."""
    options = _options(force, failure_limit, on_limit, failure_streak)
    if from_sidecar is not None:
        if (prompt, prompts, image, seed, seeds) != (None,) * 5 or matrix or profile != USUAL_PROFILE:
            raise InputError("--from-sidecar says all of the clip: give no prompt, image, profile or seed with it")
        asked = Asked(None, str(from_sidecar), None, profile, None, overrides, out, name)
        _render_again(asked, images, layout, options, as_json=as_json)
        return
    if images is not None:
        raise InputError("--images goes with --from-sidecar", hint="the image of a prompt is given by --image")
    asked = Asked(prompt, prompts, image, profile, seed, overrides, out, name, _spread(seed, seeds, matrix))
    clips, profiles = clips_of(asked)
    _require_targets(clips, asked)
    named = {"name": asked.batch, **({"source": str(location_of(prompts))} if prompts else {})}
    from magi2.deployment import Deployment

    _tell(
        _render(clips, profiles, Deployment.from_environment(), asked.folder, layout, options, **named), as_json=as_json
    )


def _options(force: bool, failure_limit: int, on_limit: str | None, failure_streak: int) -> BatchOptions:
    """What was chosen of the batch as a whole. Raises InputError for what cannot be."""
    return BatchOptions(
        failure_limit,
        force=tuple(stage.value for stage in ARTIFACT_STAGES) if force else (),
        on_limit=on_limit,  # type: ignore[arg-type]  # checked there
        failure_streak=failure_streak,
    )


def _spread(seed: int | None, seeds: str | None, matrix: bool) -> Spread:
    """What rows stand for that do not say it. Raises InputError for seeds that are none."""
    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds exclude each other")
    return Spread(matrix=matrix, seeds=parse_seeds(seeds) if seeds is not None else ())


def _render_again(
    asked: Asked, images: Path | None, layout: str | None, options: BatchOptions, *, as_json: bool
) -> None:
    """The clip of the sidecar `asked.prompts`, and whether its bytes came out as they were."""
    from magi2.delivery.again import again
    from magi2.delivery.sidecar import read_sidecar
    from magi2.deployment import Deployment
    from magi2.stages.layouts import stage_layout

    assert asked.prompts is not None
    file, deployment = Path(asked.prompts), Deployment.from_environment()
    sidecar, placing = read_sidecar(file), asked.placing(deployment.settings)
    with TemporaryDirectory(prefix="magi2-again-") as scratch:
        found = again(
            sidecar,
            deployment,
            name=file.stem,
            overrides=asked.overrides,
            images=images,
            placing=placing,
            scratch=Path(scratch),
        )
        if not found.is_own_negative and stage_layout(StageName.PREVIEW, layout, deployment.settings).num_ranks > 1:
            raise InputError(
                "the sidecar's negative prompt is not this deployment's, whose ranks would read their own",
                hint=f"write it into {found.profile.text.negative_prompt} of MAGI2_CONFIGS, or take --layout sp1",
            )
        _require_targets([found.clip], asked)
        profiles = {found.profile.digest(): found.profile}
        named = {"name": asked.name or file.stem, "source": str(file)}
        rendered = _render([found.clip], profiles, found.deployment, asked.folder, layout, options, **named)
        for row in rendered.rows:
            key = row["key"]
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
    folder: Path,
    layout: str | None,
    options: BatchOptions,
    **named: str,
) -> _Rendered:
    """Clips made and brought to their targets, of which one may be `folder`.

    Raises what stops it where no clip was made before.
    """
    started = time.monotonic()
    from magi2.jobs.render import ClipRender

    check_machine(deployment, _used(clips, profiles), clips)
    with resumable(), TerminalProgress() as progress:
        given: dict[str, Any] = {**named, "layout": layout, "out": folder, "options": options, "progress": progress}
        work = ClipRender(clips, profiles, deployment, **given)
        rendered = _Rendered(work.batch_id, [])
        try:
            with closing(work.render()) as outcomes:
                for outcome in outcomes:
                    quality = _judged(outcome, deployment.thresholds)
                    rendered.rows.append(_row(outcome, quality, work.receipts(outcome.clip), work.targets))
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
    name: str = typer.Argument(help="enhance, encode, preview, refine, decode, mux or deliver."),
    prompt: str | None = PROMPT,
    prompts: str | None = PROMPTS,
    image: str | None = IMAGE,
    profile: str = PROFILE,
    seed: int | None = SEED,
    out: Path | None = OUT_FOLDER,
    overrides: list[str] = OVERRIDES,
    layout: str | None = LAYOUT,
    as_json: bool = AS_JSON,
) -> None:
    """Run one stage of the given prompts; its inputs must be in the store."""

    asked = Asked(prompt, prompts, image, profile, seed, overrides, out)
    clips, profiles = clips_of(asked)

    for resolved in profiles.values():
        names = [stage.value for stage in (*resolved.stages, StageName.DELIVER)]
        if name not in names:
            raise InputError(f"profile {resolved.name} has no stage {name!r}", hint=nearest(name, names))
    if name == StageName.DELIVER:
        _require_targets(clips, asked)
    from magi2.deployment import Deployment
    from magi2.jobs.render import ClipRender

    deployment = Deployment.from_environment()
    check_machine(deployment, _used(clips, profiles), clips)
    with resumable(), TerminalProgress() as progress:
        work = ClipRender(clips, profiles, deployment, layout=layout, out=asked.folder, progress=progress)
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


@dataclass(frozen=True)
class Asked:
    """What a command was given."""

    prompt: str | None
    prompts: str | None
    image: str | None
    profile: str
    seed: int | None
    overrides: Sequence[str]
    out: Path | None
    name: str | None = None
    spread: Spread = NO_SPREAD

    @property
    def batch(self) -> str:
        """What the batch is called."""
        return self.name or (location_of(self.prompts).stem if self.prompts else "prompt")

    @property
    def folder(self) -> Path:
        """The folder for clips that are brought to no other target."""
        return self.out or Path("out")

    def placing(self, settings: Settings) -> Placing:
        """Where clips are brought: to a folder that was given, unless their rows say otherwise."""
        require = Targets.of(settings, out=self.folder).require
        return Placing(batch=self.batch, target=OUT if self.out else None, otherwise=OUT, require=require)


def clips_of(asked: Asked) -> tuple[tuple[Clip, ...], dict[str, Profile]]:
    """The clips asked for, and their resolved profiles by digest. Raises InputError listing all bad rows."""
    settings = Settings.from_environment()
    profile_of = Profiles(settings.configs, asked.profile, asked.overrides)
    profile_of(None)
    if (asked.prompt is None) == (asked.prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE")
    placing = asked.placing(settings)
    if asked.prompts is not None:
        if asked.image is not None or asked.seed is not None:
            raise InputError("--image and --seed go with --prompt; a batch file has columns for them")
        file = location_of(asked.prompts)
        roots = user_roots(settings, folder_of(file))
        batch = read_batch(file, profile_of, roots, placing, asked.spread, profile_of.derive).require_good()
        profile_of.require_all_applied(batch.used_profiles.values())
        return batch.clips, batch.used_profiles
    row = Row(1, {"prompt": asked.prompt, "image": asked.image, "seed": asked.seed, "name": "prompt"})
    images = (location_in(Path.cwd(), figure.source) for figure in parse_image_argument(asked.image))
    roots = user_roots(settings, *map(folder_of, images))
    batch = make_batch([row], profile_of, folder=Path.cwd(), roots=roots, placing=placing, spread=asked.spread)
    if batch.bad_rows:
        raise InputError(batch.bad_rows[0].reason)
    profile_of.require_all_applied(batch.used_profiles.values())
    return batch.clips, batch.used_profiles


def _used(clips: Sequence[Clip], profiles: Mapping[str, Profile]) -> list[Profile]:
    """The profiles that these clips have: the default one need not be among them."""
    return [profiles[digest] for digest in dict.fromkeys(clip.profile_digest for clip in clips)]


def _require_targets(clips: Sequence[Clip], asked: Asked) -> None:
    """Before anything is rendered for them: targets that can be opened, and the folder of the command.

    Raises: InputError for a folder that cannot be made, ConfigError for a target that cannot be used from here.
    """
    targets = Targets.of(Settings.from_environment(), out=asked.folder)
    for name in sorted({delivery.target for clip in clips for delivery in clip.deliveries}):
        targets.open(name)
        if name != OUT:
            continue
        try:
            asked.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out {asked.folder}: {error.strerror or error}") from error


def _judged(outcome: Outcome, thresholds: Thresholds) -> Judgement | None:
    """How the clip is judged; None of one that is not finished, or was not measured."""
    made = next((result for result in outcome.results if result.stage is StageName.MUX), None)
    measures = Measures.of(made.measures) if made else None
    return judge(measures, outcome.clip.expect, thresholds) if measures else None


def _row(outcome: Outcome, quality: Judgement | None, receipts: Sequence[Receipt], targets: Targets) -> dict[str, Any]:
    failure = outcome.failure
    flags = list(dict.fromkeys([*outcome.flags, *(quality.flags if quality else ())]))
    return {
        "clip": outcome.clip.clip_id,
        "names": list(outcome.clip.names),
        "profile": outcome.clip.profile_name,
        "seed": outcome.clip.seed,
        "state": "failed" if failure else "flagged" if flags else "done",
        "failed_stage": failure.stage.value if failure else None,
        "error": in_one_line(failure.error) if failure and failure.error else None,
        "flags": flags,
        "quality": quality.to_json() if quality else None,
        "key": next((result.key for result in outcome.results if result.stage is StageName.MUX), None),
        "stages": {result.stage.value: result.state for result in outcome.results},
        "seconds": round(sum(result.seconds for result in outcome.results), 3),
        "files": {} if failure else _files(receipts, targets),
        "deliveries": [
            {"target": each.target, "name": each.name, "sha256": each.sha256} for each in receipts if each.delivered_at
        ],
    }


def _files(receipts: Sequence[Receipt], targets: Targets) -> dict[str, str]:
    """Where the files of a clip's first delivery are, by what they are."""
    if not receipts:
        return {}
    first, place = receipts[0], targets.open(receipts[0].target)
    names = {what: companion(first.name, ending) for ending, what in DELIVERED.items()}
    return {what: place.address(name) for what, name in names.items() if name in first.files}


def _summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    states = [state for row in rows for stage, state in row["stages"].items() if stage != StageName.DELIVER]
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
