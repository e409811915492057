"""`magi2 compare`: how far the clips of two batches are from each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import typer

from magi2.cli.console import AS_JSON, errors, print_json, results
from magi2.errors import InputError, Magi2Error, in_one_line
from magi2.files import partial_file

if TYPE_CHECKING:
    from magi2.report.pairs import Pair
    from magi2.stages.likeness import ClipLikeness

LINE = ("clip", "seeds", "PSNR dB", "SSIM", "video cosine", "video L2", "audio cosine", "audio L2")

_MEASURED = (
    "psnr_db",
    "ssim",
    *(f"{kind}_{what}" for kind in ("video", "audio") for what in ("cosine", "relative_l2")),
)
"""What a pair is measured by, in the order of the lines."""

NOTE = (
    "judge by the means of many clips, never by hash or one clip: on another accelerator, layout or implementation one "
    "expert chosen otherwise makes another clip of the same seed (docs/fidelity.md)"
)


def compare_command(
    one: str = typer.Argument(help="Id of a batch."),
    other: str = typer.Argument(help="Id of the batch that it is compared with."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the JSON to this file, too."),
    as_json: bool = AS_JSON,
) -> None:
    """Compare the clips of two batches that show the same, the least alike first: delivered frames and latents.

    Clips pair by prompt, images and seed, then by prompt and images alone: so tiers are compared, formats of weights,
    and seeds, whose means are the scale for the others.
    """
    from magi2.deployment import Deployment
    from magi2.report.pairs import find_pairs
    from magi2.stages.likeness import clip_likeness

    deployment = Deployment.from_environment()
    store, url = deployment.store, deployment.settings.airflow_url
    pairs, alone = find_pairs(store, one, other)
    if not pairs:
        raise InputError(f"batches {one} and {other} have no prompt in common that both have delivered")
    rows, failed = [], []
    for pair in pairs:
        try:
            rows.append(_row(pair, clip_likeness(store, pair.one.key, pair.other.key), url))
        except Magi2Error as error:
            failed.append({"clip": pair.name, "link": pair.link(url), "error": in_one_line(error)})
    rows.sort(key=lambda row: row["ssim"])
    alone_ids = [f"{each.batch_id}:{each.clip.clip_id}" for each in alone]
    summary: dict[str, Any] = {
        "one": one,
        "other": other,
        "clips": rows,
        "not_compared": failed,
        "without_counterpart": alone_ids,
    }
    summary |= {"mean": _means(rows), "note": NOTE}
    if out is not None:
        with partial_file(out) as partial:
            partial.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print_json(summary) if as_json else _print(summary)
    if failed:
        raise typer.Exit(1)


def _row(pair: Pair, likeness: ClipLikeness, url: str | None) -> dict[str, Any]:
    return {
        "clip": pair.name,
        "clip_ids": [pair.one.clip.clip_id, pair.other.clip.clip_id],
        "seeds": [pair.one.clip.seed, pair.other.clip.seed],
        "profiles": [pair.one.clip.profile_name, pair.other.clip.profile_name],
        **asdict(likeness),
        "link": pair.link(url),
    }


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Of the pairs that have the value; equal frames have no PSNR."""
    found = {name: [row[name] for row in rows if row[name] is not None] for name in _MEASURED}
    return {name: mean(values) if values else None for name, values in found.items()}


def _print(summary: dict[str, Any]) -> None:
    """A line a clip, and below it where both play side by side; then the means."""
    results.print("  ".join(LINE))
    for row in summary["clips"]:
        seeds = " ".join(map(str, dict.fromkeys(row["seeds"])))
        results.print("  ".join([" ".join(row["clip"].split())[:40], seeds, *_shown(row)]))
        results.print(f"  {row['link']}")
    if summary["clips"]:
        results.print("  ".join(["mean", "", *_shown(summary["mean"])]))
    for row in summary["not_compared"]:
        errors.print(f"{row['clip']}: {row['error']}", style="red")
    counts = len(summary["clips"]), len(summary["without_counterpart"])
    results.print(f"{counts[0]} pairs, the least alike first; {counts[1]} clips without a counterpart")
    results.print(summary["note"])


def _shown(values: dict[str, Any]) -> list[str]:
    psnr = "equal" if values["psnr_db"] is None else f"{values['psnr_db']:.1f}"
    return [psnr, *("-" if values[name] is None else f"{values[name]:.4f}" for name in _MEASURED[1:])]
