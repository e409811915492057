"""Figure tokens: which images a clip has, and how the prompt names them.

The image encoder puts the text position of `<Figure N>` in front of the image's own tokens; a figure that the encoder
text never names is conditioned by a zero vector. Source: MAGI-2 preview inference code, image arguments and prompts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from magi2.errors import ImageError, InputError
from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import parse_json

FIRST_FRAME_SENTENCE = "The first frame refers to <Figure 1>"

_MENTION = re.compile(r"<Figure ([0-9]{1,9})>")
_DIGITS = re.compile(r"[0-9]+")
_MAX_DIGITS = 9


@dataclass(frozen=True)
class Figure:
    """One reference image: its number, the key it was given under, where it is (path or URL) and what it was.

    `sha256` is the digest of a file that was checked before and must still be the same.
    """

    number: int
    token: str
    source: str
    sha256: str | None = None

    @property
    def mention(self) -> str:
        """What the encoder text has to contain for this image to be conditioned on its place in the text."""
        return f"<Figure {self.number}>"


def parse_image_argument(argument: str | None) -> tuple[Figure, ...]:
    """The images of a clip in the order of their numbers; none for a missing or blank argument.

    A plain string is `<Figure 1>`. A string that starts with `{` is a JSON object from token to source; the number is
    the first run of digits in the token, 1 without any. The published code orders by the token's letters, so that
    Figure 10 precedes Figure 2; here numbers decide.
    Raises: ImageError if the object is broken, two tokens share a number, or no image is Figure 1.
    """
    text = (argument or "").strip()
    if not text:
        return ()
    if not text.startswith("{"):
        return (Figure(1, "<Figure 1>", text),)
    figures = sorted(map(_figure, *zip(*_image_map(text).items(), strict=True)), key=lambda figure: figure.number)
    numbers = [figure.number for figure in figures]
    if len(set(numbers)) != len(numbers):
        raise ImageError(f"two images share a figure number: {', '.join(f.token[:40] for f in figures)}")
    if numbers[0] != 1:
        raise ImageError(f"the images start at <Figure {numbers[0]}>", hint="the first frame must be <Figure 1>")
    return tuple(figures)


def figure_mentions(text: str) -> tuple[int, ...]:
    """Numbers of the figures that the text names, ascending, each once."""
    return tuple(sorted({int(number) for number in _MENTION.findall(text)}))


def check_figure_mentions(prompt: str, figures: tuple[Figure, ...]) -> None:
    """Refuse a prompt that names a figure without an image; raises InputError."""
    known = {figure.number for figure in figures}
    strays = [number for number in figure_mentions(prompt) if number not in known]
    if strays:
        raise InputError(
            f"the prompt names <Figure {strays[0]}> but has {len(known)} image(s)",
            hint="add the image or take the token out of the prompt",
        )


def add_figure_hint(prompt: str, *, figures: tuple[Figure, ...]) -> str:
    """The prompt with the sentence that ties the first frame to `<Figure 1>`, and every other figure findable.

    One image gives the published bytes: the root key `reference_layer` of a JSON object is replaced, any other text
    gets the hint glued to its end. With more images an existing `reference_layer` list is kept after that sentence,
    and each figure that the encoder text would not contain gets a line of its own.
    """
    if not figures:
        return prompt
    caption = _json_object(prompt)
    if caption is None:
        hinted = f"{prompt}reference_layer:{FIRST_FRAME_SENTENCE}"
        return hinted + "".join(f"\n{line}" for line in _missing_lines(hinted, figures))
    kept = _kept_references(caption) if len(figures) > 1 else []
    caption["reference_layer"] = [FIRST_FRAME_SENTENCE, *kept]
    caption["reference_layer"] += _missing_lines(_dump(caption), figures)
    return _dump(caption)


def _missing_lines(prompt: str, figures: tuple[Figure, ...]) -> list[str]:
    text = compact_prompt(prompt)
    # Figure 1 alone is always covered by the published sentence.
    return [f"A further reference image is {figure.mention}" for figure in figures if figure.mention not in text]


def _kept_references(caption: dict[str, Any]) -> list[str]:
    lines = caption.get("reference_layer")
    return [
        line
        for line in (lines if isinstance(lines, list) else [])
        if isinstance(line, str) and line.strip() and line != FIRST_FRAME_SENTENCE
    ]


def _json_object(prompt: str) -> dict[str, Any] | None:
    try:
        value = parse_json(prompt)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _dump(caption: dict[str, Any]) -> str:
    try:
        return json.dumps(caption, ensure_ascii=False)
    except RecursionError:
        raise InputError("the JSON prompt is nested too deeply to render", hint="flatten it") from None


def _image_map(text: str) -> dict[str, Any]:
    try:
        mapping = parse_json(text)
    except ValueError:
        raise ImageError(
            "the image argument starts with { but is not a JSON object", hint='write {"<Figure 1>": "first.png"}'
        ) from None
    if not mapping:
        raise ImageError("the image map is empty", hint="leave the image out instead")
    return dict(mapping)


def _figure(token: str, source: Any) -> Figure:
    if isinstance(source, bool) or not isinstance(source, str | int | float) or not str(source).strip():
        raise ImageError(f"the image map gives no file for {token[:40]!r}")
    digits = _DIGITS.search(token)
    if digits and len(digits[0]) > _MAX_DIGITS:
        raise ImageError(f"the image map's key {token[:40]!r} has a number of more than {_MAX_DIGITS} digits")
    return Figure(int(digits[0]) if digits else 1, token, str(source).strip())
