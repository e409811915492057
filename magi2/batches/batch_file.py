"""Batch files: JSONL, CSV or a JSON array of prompts, validated whole before anything is rendered.

Columns: `prompt` or `prompt_file`, and optionally `image`, `seed`, `profile`, `priority`, `tags`, `name`,
`delivery_target`, `delivery_name`, `expect_motion`, `expect_sound`. Text is taken as readers see it, see
`magi2.inputs.readable`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from magi2.batches.csv_rows import csv_rows
from magi2.batches.json_rows import json_rows
from magi2.batches.pictures import References
from magi2.batches.placing import UNPLACED, Placing, merged
from magi2.batches.rows import ROW_COLUMNS, SUFFIXES, Row
from magi2.config.profile import Profile
from magi2.config.strict import nearest
from magi2.delivery.names import without_collisions
from magi2.errors import InfrastructureError, InputError, Magi2Error
from magi2.inputs.files import InputRoots, resolved
from magi2.inputs.limits import (
    MAX_BATCH_BYTES,
    MAX_IMAGES,
    MAX_NAME_CHARS,
    MAX_NAMES,
    MAX_PROMPT_CHARS,
    MAX_ROWS,
    MAX_TAG_CHARS,
    MAX_TAGS,
)
from magi2.inputs.readable import readable, readable_line
from magi2.inputs.text import RepeatedKeyError, load_json, quoted, shown
from magi2.prompts.figures import check_figure_mentions, parse_image_argument
from magi2.types import RESTS, Clip, Expect, FigureImage, check_seed, derive_seed

MAX_PRIORITY = 1_000_000
_MAX_ALIKE = 10
"""Rows of one reason that are listed each; more of them say something of the whole file."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be rendered, and why; number and place as in `Row`."""

    number: int
    reason: str
    place: str | None = None

    @property
    def where(self) -> str:
        """Its line, and its number among those that begin there."""
        return self.place or f"line {self.number}"

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class BadRowsError(InputError):
    """Rows that cannot be rendered, where none may be skipped."""

    def __init__(self, rows: Sequence[BadRow]) -> None:
        listing = "\n".join(f"  {line}" for line in _listed(rows))
        super().__init__(f"{len(rows)} bad rows, nothing was started:\n{listing}")
        self.rows = tuple(rows)


@dataclass(frozen=True)
class Batch:
    """The distinct clips of a batch, in order of first mention, and the rows that were refused."""

    clips: tuple[Clip, ...]
    bad_rows: tuple[BadRow, ...]

    def require_good(self) -> Batch:
        """This batch. Raises BadRowsError listing every bad row, if there is one; many for one reason are told once."""
        if self.bad_rows:
            raise BadRowsError(self.bad_rows)
        return self


def _listed(rows: Sequence[BadRow]) -> Iterator[str]:
    alike: dict[str, list[BadRow]] = {}
    for row in rows:
        alike.setdefault(row.reason, []).append(row)
    for row in rows:
        others = alike[row.reason]
        if len(others) <= _MAX_ALIKE:
            yield str(row)
        elif row is others[0]:
            yield f"{row} (so are {len(others) - 1} more rows, the last in {others[-1].where})"


def read_rows(path: Path, roots: InputRoots | None = None) -> list[Row]:
    """The rows of a .jsonl, .csv, .json or .tsv file that lies in `roots`, by default wherever it lies.

    Raises: InputError when the file as a whole cannot be read.
    """
    what, suffix = shown(path), path.suffix.lower()
    if suffix not in _READERS:
        raise InputError(f"{what}: unknown kind of batch file {quoted(path.suffix)}, known: {', '.join(_READERS)}")
    text = (roots or InputRoots.around(path)).read_text(path, what, MAX_BATCH_BYTES, in_rows=True)
    try:
        rows = list(islice(_READERS[suffix](text), MAX_ROWS + 1))
    except ValueError as error:
        raise InputError(f"{what}: unreadable: {error}") from None
    if not rows:
        raise InputError(f"{what}: holds no prompts")
    if len(rows) > MAX_ROWS:
        raise InputError(f"{what}: has more than {MAX_ROWS} rows", hint="split the batch")
    if len({row.number for row in rows}) < len(rows):
        return [replace(row, number=n, place=f"line {row.number}, item {n}") for n, row in enumerate(rows, start=1)]
    return rows


def read_batch(
    path: Path,
    profile_of: Callable[[str | None], Profile],
    roots: InputRoots | None = None,
    placing: Placing = UNPLACED,
) -> Batch:
    """The clips of a batch file; relative paths in it start at its folder.

    `profile_of` gives the profile of a name, or the default one for None. `roots` are the folders of the file and of
    all that its rows name, by default its own folder. `placing` says where clips are brought.
    """
    roots = roots or InputRoots.around(path)
    folder = resolved(path).parent
    return make_batch(read_rows(path, roots), profile_of, folder=folder, roots=roots, placing=placing)


def make_batch(
    rows: Sequence[Row],
    profile_of: Callable[[str | None], Profile],
    *,
    folder: Path,
    roots: InputRoots | None = None,
    placing: Placing = UNPLACED,
    check: Callable[[Clip], None] | None = None,
) -> Batch:
    """Clips of `rows`; equal prompt, images, seed and profile become one clip with several names.

    Relative paths start at `folder`. Files are read from `roots` alone, by default from `folder`. `placing` says where
    clips are brought; no two of them get one name there. A clip that `check` raises an error for is refused with its
    row.
    """
    clips: dict[str, Clip] = {}
    bad_rows: list[BadRow] = []
    roots = roots or InputRoots((folder,))
    place = _Place(folder, roots, References(folder, roots))
    for row in rows:
        try:
            clip = _clip(row, profile_of, place, placing)
            known = clips.get(clip.clip_id)
            if check and not known:
                check(clip)
            clips[clip.clip_id] = _merged(known, clip) if known else clip
        except InfrastructureError:
            raise
        except Magi2Error as error:
            bad_rows.append(BadRow(row.number, str(error), row.place))
    return Batch(without_collisions(tuple(clips.values())), tuple(bad_rows))


@dataclass(frozen=True)
class _Place:
    """Where relative paths of rows start, and where their files may lie."""

    folder: Path
    roots: InputRoots
    references: References

    def if_absent(self, source: str) -> str | None:
        """What to look at first when nothing lies where `source` leads."""
        return None if Path(source).is_absolute() else f"relative paths start at {shown(self.folder)}"


def _merged(known: Clip, again: Clip) -> Clip:
    """One clip for two rows: names, tags and places of both, and as urgent as the more urgent one.

    As much is expected of it as by the row that expects more.
    """
    names, tags = known.names + again.names, tuple(dict.fromkeys(known.tags + again.tags))
    _check_size("rows", len(names), MAX_NAMES)
    _check_size("tags", len(tags), MAX_TAGS)
    return replace(
        known,
        names=names,
        tags=tags,
        priority=max(known.priority, again.priority),
        deliveries=merged(known.deliveries, again.deliveries),
        expect=known.expect | again.expect,
    )


def _clip(row: Row, profile_of: Callable[[str | None], Profile], place: _Place, placing: Placing) -> Clip:
    if row.problem:
        raise InputError(row.problem)
    _check_unicode(row.values)
    for key in row.values:
        if key not in ROW_COLUMNS:
            raise InputError(f"unknown column {quoted(key)}", hint=nearest(key, ROW_COLUMNS))
    values = {key: value for key, value in row.values.items() if value not in (None, "")}
    profile = profile_of(_text(values, "profile"))
    prompt = _prompt(values, place)
    figures = _figures(prompt, values.get("image"), profile, place)
    seed = values.get("seed")
    first_image = figures[0].sha256 if figures else None
    clip = Clip(
        prompt=prompt,
        seed=derive_seed(prompt, first_image) if seed is None else check_seed(_whole("seed", seed)),
        profile_name=profile.name,
        profile_digest=profile.digest(),
        figures=figures,
        names=(_name(values) or f"row {row.number}",),
        tags=_tags(values.get("tags")),
        priority=_priority(values.get("priority", 0)),
        expect=_expect(values, profile),
    )
    target, name = _text(values, "delivery_target"), _text(values, "delivery_name")
    return replace(clip, deliveries=placing.deliveries(clip, profile.delivery, target=target, name=name))


def _expect(values: Mapping[str, Any], profile: Profile) -> Expect:
    """What is expected of the clip: what its row says, else its profile."""
    said = {key: text for key in ("motion", "sound") if (text := _text(values, f"expect_{key}"))}
    for key, text in said.items():
        if text not in RESTS:
            raise InputError(f"expect_{key} is {quoted(text)}, must be one of {', '.join(RESTS)}")
    return replace(profile.quality.expect, **said)  # type: ignore[arg-type]


def _prompt(values: Mapping[str, Any], place: _Place) -> str:
    if file_name := _text(values, "prompt_file"):
        if "prompt" in values:
            raise InputError("gives both a prompt and a prompt_file", hint="leave one out")
        path, what = place.folder / file_name, f"prompt_file {shown(file_name)}"
        prompt = readable(place.roots.read_text(path, what, if_absent=place.if_absent(file_name)), what)
    else:
        prompt = readable(_text(values, "prompt") or "", "the prompt")
    _check_size("characters in its prompt", len(prompt), MAX_PROMPT_CHARS)
    _refuse_repeated_keys("the prompt", prompt)
    return prompt


def _name(values: Mapping[str, Any]) -> str | None:
    name = _text(values, "name")
    if name is None:
        return None
    _check_size("characters in its name", len(name), MAX_NAME_CHARS)
    return readable_line(name, "the name")


def _refuse_repeated_keys(what: str, text: str) -> None:
    """Raises InputError when `text` is JSON that gives two values for one thing."""
    if text.startswith("{"):
        try:
            load_json(text)
        except RepeatedKeyError as error:
            raise InputError(f"{what} gives two values for {quoted(error.key)}") from None
        except ValueError:
            return  # text like any other


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise InputError(f"the clip has {size} {what}, at most {limit}")


def _figures(prompt: str, argument: object, profile: Profile, place: _Place) -> tuple[FigureImage, ...]:
    if isinstance(argument, Mapping):
        for token, source in argument.items():
            if not isinstance(source, str):
                raise InputError(f"image gives a {type(source).__name__} for {quoted(token)}, not a path")
        argument = json.dumps(argument)
    if argument is not None and not isinstance(argument, str):
        raise InputError(f"image is a {type(argument).__name__}, not a path or a map of figures to paths")
    _refuse_repeated_keys("the image map", (argument or "").strip())
    images = parse_image_argument(argument)
    _check_size("images", len(images), MAX_IMAGES)
    check_figure_mentions(prompt, images)
    return tuple(place.references.image(figure, profile.preview) for figure in images)


def _check_unicode(values: Mapping[str, Any]) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        reason = "the text is damaged: it holds half a surrogate pair, or bytes that are no UTF-8"
        raise InputError(reason, hint="save it as valid UTF-8") from error


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{key} is a {type(value).__name__}, not text")
    return value


def _priority(value: object) -> int:
    priority = _whole("priority", value)
    if abs(priority) > MAX_PRIORITY:
        raise InputError(f"priority {priority} is beyond {MAX_PRIORITY}")
    return priority


def _whole(key: str, value: object) -> int:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{key} {quoted(value)} is not a whole number")
    return value


def _tags(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, str | list):
        raise InputError(f"tags is a {type(value).__name__}, not text or a list of texts")
    tags = []
    for part in value if isinstance(value, list) else value.split(","):
        if not isinstance(part, str):
            raise InputError(f"tags holds a {type(part).__name__}, not text alone")
        if part.strip():
            tags.append(readable_line(part, "a tag"))
    _check_size("tags", len(tags), MAX_TAGS)
    _check_size("characters in a tag", max(map(len, tags), default=0), MAX_TAG_CHARS)
    return tuple(tags)


_READERS: dict[str, Callable[[str], Iterator[Row]]] = dict(
    zip(SUFFIXES, (json_rows, csv_rows, json_rows, csv_rows), strict=True)
)
