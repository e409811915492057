"""A prompt of the demo's grammar back into what it asks for, whichever wording, rendering or language it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from demo_world.scenes import Background, Colour, Motion, Scene, Shape, Size, Sound, Speed
from demo_world.vocabulary import CHINESE, ENGLISH, FIGURE, Vocabulary
from magi2.errors import InputError
from magi2.prompts.figures import FIRST_FRAME_SENTENCE

_HINT = f"reference_layer:{FIRST_FRAME_SENTENCE}"  # glued to the last word of whatever has an image
_HAN = re.compile("[\u4e00-\u9fff]")
Meaning = TypeVar("Meaning", bound=str)


@dataclass(frozen=True)
class Request:
    """What a prompt asks for; None where it leaves something open, or to a reference image."""

    shape: Shape | None
    colour: Colour | None
    background: Background | None
    size: Size | None
    speed: Speed | None
    motion: Motion
    sound: Sound

    def fits(self, scene: Scene) -> bool:
        """Whether `scene` is one of those that were asked for."""
        asked = {name: value for name, value in vars(self).items() if value is not None}
        return all(getattr(scene, name) == value for name, value in asked.items())


def read_caption(text: str, *, pictured: Scene | None = None) -> Request:
    """What `text` asks for. A prompt that names <Figure 1> leaves shape, colours and size to the scene `pictured`.

    Without that scene they are None. Raises: InputError naming what is missing, contradictory or outside the grammar.
    """
    plain = " ".join(text.replace(_HINT, " ").lower().split())
    vocabulary = CHINESE if _HAN.search(plain) else ENGLISH
    # Sounds go first: "a tone that rises" is no motion. Then speeds, which stand inside the motions' phrases.
    sounds, rest = _take_out(plain, _by_phrase(vocabulary.sounds), vocabulary, left="|")
    speeds, rest = _take_out(rest, _by_phrase(vocabulary.speeds), vocabulary, left="")
    motions, rest = _take_out(rest, _motions(vocabulary), vocabulary, left="|")
    backgrounds, rest = _backgrounds(rest, vocabulary)
    sizes, colours, shapes = _things(rest, vocabulary)
    has_figure = FIGURE.lower() in plain
    look = _one_or_open if has_figure else _one
    shown = pictured if has_figure else None
    return Request(
        shape=look(shapes | _seen(shown, "shape"), "shape", text),
        colour=look(colours | _seen(shown, "colour"), "colour", text),
        background=look(backgrounds | _seen(shown, "background"), "background", text),
        size=_one_or_open(sizes | _seen(shown, "size"), "size", text),
        speed=_one_or_open(speeds, "speed", text),
        motion=_one(motions, "motion", text),
        sound=_one(sounds, "sound", text),
    )


def _seen(pictured: Scene | None, attribute: str) -> set[Any]:
    """What the reference image says of an attribute."""
    return set() if pictured is None else {getattr(pictured, attribute)}


def _by_phrase(phrases: Mapping[Meaning, tuple[str, ...]]) -> dict[str, Meaning]:
    return {phrase: meaning for meaning, synonyms in phrases.items() for phrase in synonyms}


def _motions(vocabulary: Vocabulary) -> dict[str, Motion]:
    return {phrase.format(q="").strip(): motion for phrase, motion in _by_phrase(vocabulary.motions).items()}


def _take_out(
    text: str, phrases: Mapping[str, Meaning], vocabulary: Vocabulary, *, left: str
) -> tuple[set[Meaning], str]:
    """The meanings of all phrases in the text, and the text with `left` in their places."""
    edge = r"(?<![a-z]){}(?![a-z]) ?" if vocabulary.is_spaced else "{}"
    pattern = re.compile(edge.format(_any_of(phrases)))
    found = {phrases[match[1]] for match in pattern.finditer(text)}
    return found, pattern.sub(left, text)


def _any_of(phrases: Iterable[str]) -> str:
    return "(" + "|".join(re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True)) + ")"


def _backgrounds(text: str, vocabulary: Vocabulary) -> tuple[set[Background], str]:
    colours = {word: name for name, word in vocabulary.colours.items()}
    nouns = {
        form.replace("{colour}", "").removeprefix("plain ").removeprefix("纯").strip()
        for form in vocabulary.backgrounds
    }
    pattern = re.compile(rf"{_any_of(colours)} ?{_any_of(nouns)}")
    return {colours[match[1]] for match in pattern.finditer(text)}, pattern.sub("|", text)  # type: ignore[misc]


def _things(text: str, vocabulary: Vocabulary) -> tuple[set[Size], set[Colour], set[Shape]]:
    sizes = {word: name for name, word in vocabulary.sizes.items()}
    colours = {word: name for name, word in vocabulary.colours.items()}
    shapes = {word: name for name, word in vocabulary.shapes.items()}
    pattern = re.compile(rf"(?:{_any_of(sizes)} ?)?{_any_of(colours)} ?{_any_of(shapes)}")
    found = [match.groups() for match in pattern.finditer(text)]
    return (
        {sizes[size] for size, _, _ in found if size},
        {colours[colour] for _, colour, _ in found},  # type: ignore[misc]
        {shapes[shape] for _, _, shape in found},
    )


def _one(found: set[Meaning], what: str, text: str) -> Meaning:
    if len(found) != 1:
        said = " and ".join(sorted(found)) or "none"
        raise InputError(f"prompt {text[:80]!r}: says {said} for the {what}, want exactly one that the demo knows")
    return next(iter(found))


def _one_or_open(found: set[Meaning], what: str, text: str) -> Meaning | None:
    return _one(found, what, text) if found else None
