"""From a row to its clips: what it says, its profile with the row's settings, and the takes that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magi2.batches.pictures import References
from magi2.batches.placing import UNPLACED, Placing
from magi2.batches.rows import Row, row_values
from magi2.batches.sources import Sources
from magi2.batches.spread import NO_SPREAD, Spread, Take, Takes, check_variants, parse_matrix, parse_seeds
from magi2.config.profile import Profile
from magi2.config.row_settings import derived_profile, settings_of_rows
from magi2.errors import InputError
from magi2.inputs.limits import (
    MAX_IMAGES,
    MAX_NAME_CHARS,
    MAX_PROFILES,
    MAX_PROMPT_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
)
from magi2.inputs.readable import readable, readable_line
from magi2.inputs.text import RepeatedKeyError, load_json, quoted, shown
from magi2.prompts.figures import Figure, check_figure_mentions, parse_image_argument
from magi2.types import RESTS, Clip, Expect, FigureImage, check_seed, derive_seed

MAX_PRIORITY = 1_000_000
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

ProfileOf = Callable[[str | None], Profile]
"""Gives the profile of a name, or the default one for None."""
Derive = Callable[[Profile, Mapping[str, Any]], Profile]
"""Gives a profile with a row's settings, as `derived_profile` does."""


@dataclass(frozen=True)
class Wish:
    """A row that was read, but for its images."""

    row: Row
    values: Mapping[str, Any]
    profile: Profile
    profile_digest: str
    takes: Takes


@dataclass
class RowReader:
    """Reads the rows of one batch. `spread` holds for rows that say nothing of it, `derive` applies their settings."""

    profile_of: ProfileOf
    sources: Sources
    placing: Placing = UNPLACED
    spread: Spread = NO_SPREAD
    derive: Derive = derived_profile
    profiles: dict[str, Profile] = field(default_factory=dict)
    """Those of the rows that were read, by digest."""

    def __post_init__(self) -> None:
        self._resolved: dict[tuple[str | None, str], tuple[Profile, str]] = {}
        self._references = References(self.sources)

    def read(self, row: Row) -> Wish:
        """What a row asks for. Raises: what is wrong with it, InputError as a rule."""
        if row.problem:
            raise InputError(row.problem)
        _check_unicode(row.values)
        values = row_values(row.values)
        settings = {key: settings_of_rows()[key].read(values.pop(key)) for key in settings_of_rows() & values.keys()}
        profile, digest = self._profile(_text(values, "profile"), settings)
        return Wish(row, values, profile, digest, _takes(values, self.sources, self.spread))

    def clips(self, wish: Wish) -> Iterator[Clip]:
        """The clips of a row, each with its name, tags and places. Raises: as `read`, naming the take of several."""
        for take in wish.takes:
            try:
                yield self._clip(wish, take)
            except InputError as error:
                if not take.suffix:
                    raise
                error.args = (f"{shown(take.name(_name(wish.values) or wish.row.where))}: {error.args[0]}",)
                raise

    def _clip(self, wish: Wish, take: Take) -> Clip:
        values, profile = wish.values, wish.profile
        prompt = take.prompt if len(wish.takes.prompt) == 1 else readable(take.prompt, "the prompt")
        check_size("characters in its prompt", len(prompt), MAX_PROMPT_CHARS)
        _refuse_repeated_keys("the prompt", prompt)
        figures = self._figures(prompt, values.get("image"), profile)
        derived = derive_seed(prompt, figures[0].sha256 if figures else None)
        clip = Clip(
            prompt=prompt,
            seed=take.seed_after(derived),
            profile_name=profile.title,
            profile_digest=wish.profile_digest,
            figures=figures,
            names=(take.name(_name(values) or f"row {wish.row.number}"),),
            tags=_tags(values.get("tags")),
            priority=_priority(values.get("priority", 0)),
            expect=_expect(values, profile),
        )
        target, name = _text(values, "delivery_target"), _text(values, "delivery_name")
        return replace(clip, deliveries=self.placing.deliveries(clip, profile.delivery, target=target, name=name))

    def _profile(self, name: str | None, settings: Mapping[str, Any]) -> tuple[Profile, str]:
        """The profile of a row, and its digest, each worked out once."""
        known = (name, json.dumps(settings, sort_keys=True))
        if known not in self._resolved:
            profile = self.profile_of(name)
            profile = self.derive(profile, settings) if settings else profile
            digest = profile.digest()
            if digest not in self.profiles and len(self.profiles) == MAX_PROFILES:
                message = f"the rows before have {MAX_PROFILES} different settings, as many as a batch may"
                raise InputError(message, hint="split the batch")
            self.profiles.setdefault(digest, profile)
            self._resolved[known] = profile, digest  # of one digest, yet perhaps with other targets
        return self._resolved[known]

    def _figures(self, prompt: str, argument: object, profile: Profile) -> tuple[FigureImage, ...]:
        if isinstance(argument, Mapping):
            for token, source in argument.items():
                if not isinstance(source, str):
                    raise InputError(f"image gives a {type(source).__name__} for {quoted(token)}, not a path")
            argument = json.dumps(argument)
        if argument is not None and not isinstance(argument, str):
            raise InputError(f"image is a {type(argument).__name__}, not a path or a map of figures to paths")
        _refuse_repeated_keys("the image map", (argument or "").strip())
        images: tuple[Figure, ...] = tuple(parse_image_argument(argument))
        check_size("images", len(images), MAX_IMAGES)
        check_figure_mentions(prompt, images)
        return tuple(self._references.image(figure, profile.preview) for figure in images)


def _takes(values: Mapping[str, Any], sources: Sources, spread: Spread) -> Takes:
    """What a row stands for; a batch's seeds are for rows without any."""
    prompt = _prompt(values, sources)
    matrix = _truth("matrix", values["matrix"]) if "matrix" in values else spread.matrix
    if "seed" in values and "seeds" in values:
        raise InputError("gives both a seed and seeds", hint="leave one out")
    seeds: tuple[int | None, ...] = parse_seeds(values["seeds"]) if "seeds" in values else spread.seeds
    many = bool(seeds) and "seed" not in values
    if "seed" in values:
        seeds = (check_seed(_whole("seed", values["seed"])),)
    return Takes(
        parse_matrix(prompt) if matrix else ((prompt,),),
        seeds or (None,),
        check_variants(_whole("variants", values.get("variants", 1))),
        many_seeds=many,
    )


def _truth(key: str, value: object) -> bool:
    found = _TRUTHS.get(value.strip().casefold()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise InputError(f"{key} is {quoted(value)}, must be true or false")
    return found


def _expect(values: Mapping[str, Any], profile: Profile) -> Expect:
    """What is expected of the clip: what its row says, else its profile."""
    said = {key: text for key in ("motion", "sound") if (text := _text(values, f"expect_{key}"))}
    for key, text in said.items():
        if text not in RESTS:
            raise InputError(f"expect_{key} is {quoted(text)}, must be one of {', '.join(RESTS)}")
    return replace(profile.quality.expect, **said)  # type: ignore[arg-type]


def _prompt(values: Mapping[str, Any], sources: Sources) -> str:
    if file_name := _text(values, "prompt_file"):
        if "prompt" in values:
            raise InputError("gives both a prompt and a prompt_file", hint="leave one out")
        what = f"prompt_file {shown(file_name)}"
        prompt = readable(sources.text(file_name, what), what)
    else:
        prompt = readable(_text(values, "prompt") or "", "the prompt")
    check_size("characters in its prompt", len(prompt), MAX_PROMPT_CHARS)
    return prompt


def _name(values: Mapping[str, Any]) -> str | None:
    name = _text(values, "name")
    if name is None:
        return None
    check_size("characters in its name", len(name), MAX_NAME_CHARS)
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


def check_size(what: str, size: int, limit: int) -> None:
    """Raises InputError when a clip has more of something than it may."""
    if size > limit:
        raise InputError(f"the clip has {size} {what}, at most {limit}")


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
    check_size("tags", len(tags), MAX_TAGS)
    check_size("characters in a tag", max(map(len, tags), default=0), MAX_TAG_CHARS)
    return tuple(tags)
