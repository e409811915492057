"""`magi2 marks` and `magi2 explain`: what delivered files say of themselves, and whether it is what was promised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from magi2.cli.console import AS_JSON, errors, print_json, results
from magi2.config.settings import Settings
from magi2.errors import InputError

if TYPE_CHECKING:
    from magi2.delivery.check import Checked
    from magi2.delivery.sidecar import Sidecar


def marks_command(
    files: list[Path] = typer.Argument(help="Delivered clips; the sidecar of each lies beside it."),
    as_json: bool = AS_JSON,
) -> None:
    """Check files: marked as made by AI, once, equal to what the sidecar tells of, signed as promised."""
    from magi2.delivery.check import check_delivered

    trust = Settings.from_environment().c2pa_trust
    checked = [check_delivered(file, trust) for file in files]
    if as_json:
        print_json({"files": [each.to_json() for each in checked], "good": not any(each.problems for each in checked)})
    else:
        _print_checked(checked)
    if any(each.problems for each in checked):
        raise typer.Exit(1)


def explain_command(
    file: Path | None = typer.Argument(None, help="A delivered clip, or its sidecar."),
    schema: bool = typer.Option(False, "--schema", help="Print the JSON Schema of sidecars instead."),
    as_json: bool = AS_JSON,
) -> None:
    """Print how a clip was made: from the sidecar beside it, else from what the file says itself."""
    from magi2.delivery.sidecar import SIDECAR_SUFFIX, read_sidecar, sidecar_path, sidecar_schema

    if schema:
        typer.echo(json.dumps(sidecar_schema(), ensure_ascii=False, indent=1))
        return
    if file is None:
        raise InputError("there is no FILE to explain")
    beside = sidecar_path(file)
    if beside.exists():
        sidecar = read_sidecar(beside)
        source = "sidecar"
        record = json.loads(sidecar.to_bytes())
        lines = _sidecar_lines(sidecar)
        if file.suffix != SIDECAR_SUFFIX:
            _warn_of_another(file, sidecar)
    else:
        source, record = "file", _told_by(file)
        lines = ((name, _one_line(value)) for name, value in record.items())
    if as_json:
        print_json({"from": source, "record": record})
        return
    for name, text in lines:
        results.print(f"{name:<17}{_plain(text)}".rstrip())


def _told_by(file: Path) -> dict[str, Any]:
    """What a file's own tags say. Raises InputError when they say nothing."""
    from magi2.media.marks.read import read_marks

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    marks = read_marks(file)
    told: dict[str, Any] = dict(marks.tags) | ({"AIGC": marks.entry or list(marks.aigc)} if marks.aigc else {})
    if not told:
        raise InputError(f"{file}: has no sidecar beside it, and no tag of ours in it")
    return told


def _warn_of_another(file: Path, sidecar: Sidecar) -> None:
    from magi2.artifacts.recipe import sha256_file

    if not file.is_file():
        errors.print(f"warning: {file} itself is not there", style="yellow")
    elif sha256_file(file) != sidecar.delivered.sha256:
        errors.print(f"warning: {file} is not the file that its sidecar tells of", style="yellow")


def _sidecar_lines(sidecar: Sidecar) -> Iterator[tuple[str, str]]:
    yield "clip", sidecar.clip_id
    yield "prompt", sidecar.prompt
    yield "caption", sidecar.caption
    if sidecar.negative_prompt is not None:
        yield "negative prompt", sidecar.negative_prompt
    for image in sidecar.images:
        yield f"<Figure {image.figure}>", image.sha256
    yield "seed", str(sidecar.seed)
    yield "profile", f"{sidecar.profile.name} {sidecar.profile.digest}"
    yield "settings", _one_line(sidecar.profile.settings)
    yield "weights", _pairs(sidecar.weights)
    for stage, record in sidecar.stages.items():
        where = _pairs({"device": record.device, "layout": record.layout, "host": record.host})
        by = _pairs({"magi2": record.program, **record.made_by})
        yield stage.value, f"{record.key} {record.seconds:.1f} s {record.made_at.isoformat()} {by} {where}".rstrip()
    yield "marks", _one_line(sidecar.marking)
    for name, kept in (("stored", sidecar.stored), ("delivered", sidecar.delivered)):
        signed = ", signed" if name == "delivered" and sidecar.signed else ""
        yield name, f"SHA-256 {kept.sha256}, {kept.size_bytes} bytes{signed}"
    if sidecar.cost:
        yield "cost", _one_line(sidecar.cost.model_dump(exclude_none=True))


def _print_checked(checked: list[Checked]) -> None:
    """A line a file, what is wrong or worth knowing below it."""
    cells = [("file", "marks", "sidecar", "signature", "sha256")]
    for each in checked:
        found = each.to_json()
        marked = "once" if found["marked"] else "BAD"
        cells.append((str(each.file), marked, found["sidecar"], found["signature"], each.sha256[:12]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    below: list[list[str]] = [[], *([f"BAD: {line}" for line in each.problems] + list(each.notes) for each in checked)]
    for line, told in zip(cells, below, strict=True):
        results.print("  ".join(f"{_plain(cell):<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
        for text in told:
            results.print(f"  {_plain(text)}")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _one_line(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Text from a file, which shall not steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
