"""`magi2 checkpoint`: look at a weights folder, quantise one, or make a tiny random or a hollow one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from magi2.cli.console import AS_JSON, print_json, results
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.models.preview.config import BF16, Weights
from magi2.types import check_seed

if TYPE_CHECKING:
    from magi2.checkpoints.verify import ComponentReport

app = typer.Typer(help="Check model weights, quantise them, or make tiny random or hollow ones.", no_args_is_help=True)


@app.command("make-tiny")
def make_tiny_command(
    folder: Path = typer.Argument(help="A new or empty folder."),
    seed: int = typer.Option(1, "--seed", help="The same seed gives the same weights."),
    profile: str = typer.Option("tiny", "--profile", help="The profile whose architectures are built."),
) -> None:
    """Write a complete random checkpoint in the published layout: everything runs, clips show noise."""
    architectures = load_profile(profile, Settings.from_environment().configs).architectures
    from magi2.checkpoints.tiny import make_tiny

    components = make_tiny(folder, architectures, seed=check_seed(seed))
    results.print(f"{folder}: {', '.join(components)}")


@app.command("make-hollow")
def make_hollow_command(
    folder: Path = typer.Argument(help="A new or empty folder."),
    weights: Weights = typer.Option("bf16", "--weights", help="The format of the preview's weights."),
) -> None:
    """Write the published names, shapes and sizes without data: 297 GB that take 2 MB, for plans and checks."""
    architectures = load_profile("1080p", Settings.from_environment().configs).architectures
    from magi2.checkpoints.hollow import make_hollow, size_on_disk

    components = make_hollow(folder, architectures, weights)
    seeming, taken = size_on_disk(folder)
    results.print(f"{folder}: {', '.join(components)}")
    results.print(f"{seeming / 1e9:.1f} GB in name, {taken / 1e6:.1f} MB on disk; hollow: nothing is rendered from it")


@app.command("quantise")
def quantise_command(
    source: Path = typer.Argument(help="A weights folder in the published layout."),
    folder: Path = typer.Argument(help="A new folder, or one that an interrupted run began."),
    weights: Weights = typer.Option(
        "fp8", "--weights", help="e4m3 for the routed experts alone (fp8_experts), or for all large products (fp8)."
    ),
    profile: str = typer.Option("1080p", "--profile", help="The profile whose architectures are expected."),
    copy: bool = typer.Option(False, "--copy", help="Copy the other components; by default they are links."),
) -> None:
    """Write weights whose preview is FP8: half the memory and disk, and the same bits as compute.weights at load."""
    architectures = load_profile(profile, Settings.from_environment().configs).architectures
    from magi2.checkpoints.quantise import quantise_checkpoint

    def tell(done: int, total: int) -> None:
        results.print(f"{done} of {total} files")

    record = quantise_checkpoint(source, folder, architectures, weights, copy=copy, on_file=tell)
    results.print(f"{folder}: preview in {record.weights}, made of {record.source}")


@app.command("verify")
def verify_command(
    folder: Path = typer.Argument(help="A weights folder in the published layout."),
    profile: str = typer.Option("1080p", "--profile", help="The profile whose architectures are expected."),
    fingerprint: bool = typer.Option(True, help="Also compute fingerprints, which reads every byte once."),
    as_json: bool = AS_JSON,
) -> None:
    """Say what is there, what is missing, what nobody reads, and each component's fingerprint."""
    architectures = load_profile(profile, Settings.from_environment().configs).architectures
    from magi2.checkpoints.verify import verify

    reports = []
    for report in verify(folder, architectures, fingerprint=fingerprint):
        reports.append(report)
        if not as_json:
            _print(report)
    if as_json:
        rows = [{**asdict(report), "folder": str(report.folder)} for report in reports]
        print_json({"components": rows, "complete": not any(report.problem for report in reports)})
    if any(report.problem for report in reports):
        raise typer.Exit(1)


def _print(report: ComponentReport) -> None:
    if report.problem:
        results.print(f"{report.component:<14}BAD      {report.problem}", style="red")
        return
    fingerprint = "hollow, without values" if report.hollow else report.fingerprint or "no fingerprint"
    line = f"{report.component:<14}ok       {report.tensors} tensors, {report.size_bytes / 1e9:.3f} GB, {fingerprint}"
    results.print(line)
    if report.weights != BF16:
        results.print(f"{'':<14}large weights in e4m3: compute.weights={report.weights}")
    if report.cast:
        results.print(f"{'':<14}{len(report.cast)} tensors of another dtype than published, cast when they are loaded")
    if report.skipped:
        shown = ", ".join(report.skipped[:4]) + (" ..." if len(report.skipped) > 4 else "")
        results.print(f"{'':<14}{len(report.skipped)} tensors that nothing reads: {shown}")
