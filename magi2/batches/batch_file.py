"""Batch files: JSONL, CSV, Parquet or a JSON array of prompts, validated whole before anything is rendered.

For their columns see `magi2.batches.rows`, for what becomes of a row `magi2.batches.row_clips`. Text is taken as
readers see it, see `magi2.inputs.readable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from magi2.batches.csv_rows import csv_rows
from magi2.batches.json_rows import json_rows
from magi2.batches.parquet_rows import parquet_rows
from magi2.batches.placing import UNPLACED, Placing, merged
from magi2.batches.row_clips import Derive, ProfileOf, RowReader, Wish, check_size
from magi2.batches.rows import PARQUET, SUFFIXES, Row
from magi2.batches.sources import Sources
from magi2.batches.spread import NO_SPREAD, Spread
from magi2.config.profile import Profile
from magi2.config.row_settings import derived_profile
from magi2.delivery.names import without_collisions
from magi2.errors import InfrastructureError, InputError, Magi2Error, SourceError
from magi2.inputs.files import InputRoots, folder_of, text_of
from magi2.inputs.limits import MAX_BATCH_BYTES, MAX_NAMES, MAX_ROWS, MAX_TAGS
from magi2.inputs.objects import Location
from magi2.inputs.text import quoted, shown
from magi2.types import Clip

T = TypeVar("T")
R = TypeVar("R")
_MAX_ALIKE = 10
"""Rows of one reason that are listed each; more of them say something of the whole file."""


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
class EqualRow:
    """A row, by its place, that gives prompt, images, seed and settings of the row `of`: one clip for both."""

    where: str
    of: str
    clip_id: str

    def __str__(self) -> str:
        return f"{self.where} is the clip of {self.of} again ({self.clip_id[:12]})"


@dataclass(frozen=True)
class Batch:
    """The distinct clips of a batch, in order of first mention, and the rows that were refused.

    `profiles` are those of its rows, by digest, `places` where each clip was mentioned first, by its id, and `equal`
    the rows whose clips others have already.
    """

    clips: tuple[Clip, ...]
    bad_rows: tuple[BadRow, ...]
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    equal: tuple[EqualRow, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def used_profiles(self) -> dict[str, Profile]:
        """Those that its clips have, in the same order."""
        return {digest: self.profiles[digest] for digest in dict.fromkeys(clip.profile_digest for clip in self.clips)}

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


def read_rows(path: Location, roots: InputRoots | None = None) -> list[Row]:
    """The rows of a file of one of the `SUFFIXES` that lies in `roots`, by default wherever it lies.

    Raises: InputError when the file as a whole cannot be read.
    """
    what, suffix = shown(path), path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{what}: unknown kind of batch file {quoted(path.suffix)}, known: {', '.join(SUFFIXES)}")
    return rows_in((roots or InputRoots.around(path)).read_content(path, what, MAX_BATCH_BYTES), suffix, what)


def rows_in(content: bytes, suffix: str, what: str) -> list[Row]:
    """The rows of a file's content, which is of the kind that the suffix says.

    Raises: InputError beginning with `what` when it cannot be read as a whole.
    """
    try:
        found = parquet_rows(content) if suffix == PARQUET else _READERS[suffix](text_of(content, what, in_rows=True))
        rows = list(islice(found, MAX_ROWS + 1))
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
    path: Location,
    profile_of: ProfileOf,
    roots: InputRoots | None = None,
    placing: Placing = UNPLACED,
    spread: Spread = NO_SPREAD,
    derive: Derive = derived_profile,
) -> Batch:
    """The clips of a batch file; relative paths in it start at its folder.

    `roots` are the folders of the file and of all that its rows name, by default its own folder. The rest is as in
    `make_batch`.
    """
    roots = roots or InputRoots.around(path)
    rows, folder = read_rows(path, roots), folder_of(path)
    return make_batch(rows, profile_of, folder=folder, roots=roots, placing=placing, spread=spread, derive=derive)


def make_batch(
    rows: Sequence[Row],
    profile_of: ProfileOf,
    *,
    folder: Location | None,
    roots: InputRoots | None = None,
    placing: Placing = UNPLACED,
    check: Callable[[Clip], None] | None = None,
    spread: Spread = NO_SPREAD,
    derive: Derive = derived_profile,
) -> Batch:
    """Clips of `rows`; equal prompt, images, seed and profile become one clip with several names.

    Relative paths start at `folder`; without one they are refused. Files are read from `roots` alone, by default from
    `folder`. `placing` says where clips are brought; no two of them get one name there. A row is refused whole, also
    when `check` raises an error for one of its clips. `spread` and `derive` are as in `RowReader`.
    Raises: InputError when the rows stand for more clips than a batch may have.
    """
    sources = Sources(folder, roots or InputRoots((folder,) if isinstance(folder, Path) else ()))
    reader = RowReader(profile_of, sources, placing, spread, derive)
    bad_rows: list[BadRow] = []
    wishes: list[Wish] = []
    for row in rows:
        with _refusing(row, bad_rows):
            wishes.append(reader.read(row))
    _check_count(wishes, len(rows))
    found = _Clips(check)
    for wish in wishes:
        with _refusing(wish.row, bad_rows):
            found.add(wish.row.where, reader.clips(wish))
    bad_rows.sort(key=lambda bad: bad.number)
    clips = without_collisions(tuple(found.clips.values()))
    return Batch(clips, tuple(bad_rows), reader.profiles, tuple(found.equal), found.places)


@contextmanager
def _refusing(row: Row, bad_rows: list[BadRow]) -> Iterator[None]:
    """Puts a row that is refused within to `bad_rows`."""
    try:
        yield
    except (InfrastructureError, SourceError):
        raise
    except Magi2Error as error:
        bad_rows.append(BadRow(row.number, str(error), row.place))


@dataclass
class _Clips:
    """The distinct clips of rows, and the rows whose clip another has already."""

    check: Callable[[Clip], None] | None
    clips: dict[str, Clip] = field(default_factory=dict)
    equal: list[EqualRow] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """Where each clip was mentioned first, by its id."""

    def add(self, where: str, clips: Iterable[Clip]) -> None:
        """All clips of the row at `where`, or none of them."""
        made: dict[str, Clip] = {}
        for clip in clips:
            clip_id = clip.clip_id
            known = made.get(clip_id) or self.clips.get(clip_id)
            if self.check and not known:
                self.check(clip)
            made[clip_id] = _merged(known, clip) if known else clip
        for clip_id in made:
            if (first := self.places.setdefault(clip_id, where)) != where:
                self.equal.append(EqualRow(where, first, clip_id))
        self.clips.update(made)


def _check_count(wishes: Sequence[Wish], rows: int) -> None:
    """Raises InputError when the rows stand for more clips than a batch may have, before any of them is made."""
    count = sum(wish.takes.count for wish in wishes)
    if count > MAX_ROWS:
        most = max(wishes, key=lambda wish: wish.takes.count)
        told = f"more than {MAX_ROWS}" if most.takes.count > MAX_ROWS else str(most.takes.count)
        raise InputError(
            f"its {rows} rows stand for more than {MAX_ROWS} clips, {most.row.where} alone for {told}",
            hint="split the batch, or ask for fewer seeds, variants or choices",
        )


def _merged(known: Clip, again: Clip) -> Clip:
    """One clip for two rows: names, tags and places of both, and as urgent as the more urgent one.

    As much is expected of it as by the row that expects more.
    """
    names, tags = known.names + again.names, tuple(dict.fromkeys(known.tags + again.tags))
    check_size("rows", len(names), MAX_NAMES)
    check_size("tags", len(tags), MAX_TAGS)
    return replace(
        known,
        names=names,
        tags=tags,
        priority=max(known.priority, again.priority),
        deliveries=merged(known.deliveries, again.deliveries),
        expect=known.expect | again.expect,
    )


_READERS: dict[str, Callable[[str], Iterator[Row]]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": csv_rows,
}
