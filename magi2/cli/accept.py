"""`magi2 accept`: whether this node can do the work, how fast, and what differs."""

from __future__ import annotations

from pathlib import Path

import typer

from magi2.acceptance.expect import expectation
from magi2.acceptance.plan import STEPS, Options, Outcome, chosen
from magi2.acceptance.report import REPORT_TEXT, Report, advice
from magi2.acceptance.runner import Acceptance
from magi2.acceptance.scrub import Scrubber
from magi2.acceptance.work import layout_of
from magi2.cli.accept_airflow import own_steps
from magi2.cli.console import AS_JSON, errors, print_json, results
from magi2.config.load import load_profile, profile_names
from magi2.config.price import Price
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InputError
from magi2.models.preview.config import BF16, Weights
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.types import StageName

_PUBLISHED = "1080p"
_STYLES = {"passed": "green", "slower": "yellow", "differs": "red", "failed": "red", "not run": "dim"}
_NAMES = ", ".join(step.name for step in STEPS)


def accept_command(
    steps: str = typer.Option("", "--steps", help=f"Only these, separated by commas: {_NAMES}."),
    skip: str = typer.Option("", "--skip", help="Not these."),
    profiles: list[str] = typer.Option(
        [], "--profile", help="May be given several times; by default all that the weights are made for."
    ),
    layout: str | None = typer.Option(None, "--layout", help="Ranks of preview and refiner, as in sp8.cfg1.ep4."),
    random_weights: bool = typer.Option(
        False, "--random-weights", help="Do not read the given weights; so it is where none are given."
    ),
    weights: Weights | None = typer.Option(
        None,
        "--weights",
        help="Format of the preview's weights (compute.weights); by default that of the given ones.",
    ),
    layers: int | None = typer.Option(
        None, "--layers", min=3, help="Build at most so many of preview and refiner; the rest is extrapolated."
    ),
    fingerprint: bool = typer.Option(False, "--fingerprint", help="Also read every byte of the weights once."),
    limit_s: float = typer.Option(1800.0, "--limit-s", min=1, help="Seconds after which a step is ended."),
    out: Path = typer.Option(Path("magi2-accept"), "--out", help="Folder of the report; what is done there is kept."),
    again: bool = typer.Option(False, "--again", help="Also run what is done."),
    with_paths: bool = typer.Option(False, "--with-paths", help="Leave paths, addresses and host names in the report."),
    as_json: bool = AS_JSON,
) -> None:
    """Try tools, weights, store, Airflow, kernels, collectives and every stage at full size on this node, and say what
    works, what is slow and what differs, with a report to send. The same command goes on after an interrupt."""
    settings = Settings.from_environment()
    resolved = _profiles(profiles, settings)
    options = Options(
        profiles=tuple(profile.name for profile in resolved) if not profiles else tuple(profiles),
        layout=layout,
        random_weights=random_weights or not _are_given(settings),
        layers=layers,
        fingerprint=fingerprint,
        weights=weights or _stored_format(settings),
    )
    wanted = chosen(_listed(steps), _listed(skip))
    acceptance = Acceptance(out, options, settings, own=own_steps(settings), limit_s=limit_s)
    scrubber = Scrubber(settings, with_paths=with_paths)

    def report() -> Report:
        return _report(acceptance, resolved, settings)

    def tell(outcome: Outcome) -> None:
        report().write(out, scrubber)
        if not as_json:
            _print(outcome, scrubber)

    try:
        outcomes = acceptance.run(wanted, again=again, on_end=tell)
    except KeyboardInterrupt:
        errors.print("interrupted: nothing of it runs any more; the same command goes on from here")
        raise
    found = report()
    if as_json:
        print_json(scrubber.value(found.to_json()))
    else:
        _print_end(found, out)
    if any(outcome.verdict in ("differs", "failed") for outcome in outcomes):
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _are_given(settings: Settings) -> bool:
    """Whether there are weights with values."""
    from magi2.checkpoints.layout import CheckpointFolder

    return settings.ckpt_root is not None and not CheckpointFolder(settings.ckpt_root).is_hollow("preview")


def _stored_format(settings: Settings) -> Weights:
    from magi2.checkpoints.fit import stored_format
    from magi2.checkpoints.layout import CheckpointFolder

    return stored_format(CheckpointFolder(settings.ckpt_root)) if settings.ckpt_root else BF16


def _profiles(asked: list[str], settings: Settings) -> list[Profile]:
    """Those that are asked for, or all of the networks that the weights, or else the published ones, are made of, but
    for experimental ones.

    Raises: ConfigError for an unknown one, InputError for some of different networks.
    """
    if asked:
        found = [load_profile(name, settings.configs) for name in asked]
        other = next((each for each in found if each.architectures != found[0].architectures), None)
        if other:
            raise InputError(f"profiles {found[0].name} and {other.name} are made for different weights: name one kind")
        return found
    wanted = load_profile(_fitting(settings), settings.configs).architectures
    every = [load_profile(name, settings.configs) for name in profile_names(settings.configs)]
    return [profile for profile in every if profile.architectures == wanted and not profile.experimental]


def _fitting(settings: Settings) -> str:
    from magi2.checkpoints.fit import fitting_profile
    from magi2.checkpoints.layout import CheckpointFolder

    found = fitting_profile(CheckpointFolder(settings.ckpt_root), settings.configs) if settings.ckpt_root else None
    return found or _PUBLISHED


def _report(acceptance: Acceptance, profiles: list[Profile], settings: Settings) -> Report:
    """Of all that there is by now, also from earlier runs in this folder."""
    outcomes = acceptance.told()
    layout = _layout(acceptance.options, settings)
    price = Price.of(settings)
    expected = [expectation(profile, outcomes, layout or ONE_RANK, price) for profile in profiles]
    return Report(acceptance.options, str(layout or "none"), outcomes, expected)


def _layout(options: Options, settings: Settings) -> ParallelLayout | None:
    """That of preview and refiner; None where it is none: their steps say why."""
    (step,) = (step for step in STEPS if step.name == StageName.PREVIEW)
    try:
        return layout_of(step, options, settings)
    except ConfigError:
        return None


def _print(outcome: Outcome, scrubber: Scrubber) -> None:
    says = "; ".join(each for each in (outcome.reason, *outcome.differences, *outcome.slower) if each)
    line = f"{outcome.step:<13}{outcome.verdict:<9}{outcome.seconds:>8.1f} s  {scrubber.text(says)}".rstrip()
    results.print(line, style=_STYLES[outcome.verdict])
    if to_do := advice(outcome):
        results.print(f"{'':<13}to do: {to_do}")


def _print_end(report: Report, out: Path) -> None:
    for each in report.expectations:
        if each.seconds is None:
            results.print(f"{each.profile}: not known without {', '.join(each.missing)}")
            continue
        cost = f", {each.cost}" if each.cost else ""
        guessed = f" (extrapolated: {', '.join(each.extrapolated)})" if each.extrapolated else ""
        results.print(f"{each.profile}: {each.seconds:g} s a clip, {each.clips_a_night} a night{cost}{guessed}")
    results.print(f"{report.summary}; {out / REPORT_TEXT} can be sent to others")
