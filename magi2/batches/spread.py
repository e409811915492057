"""One row that stands for several clips: seeds, variants, and a prompt with choices `{dusk|dawn}`.

How many it stands for is known before any of them is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from magi2.errors import InputError
from magi2.inputs.limits import MAX_NAME_CHARS, MAX_ROWS, MAX_VARIANTS
from magi2.inputs.text import quoted
from magi2.types import check_seed, variant_seed

_SIGNS = re.compile(r"\\[{}|\\]|[{}|]")
_HOW = "write {dusk|dawn}; \\{, \\}, \\| and \\\\ are the signs themselves; without matrix all braces are text"
_SEED = re.compile(r"[0-9]{1,20}")
_COUNTED = 64
"""Choices that are counted up: of more, with two alternatives each, no file may have so many rows."""


@dataclass(frozen=True)
class Spread:
    """What a batch says for rows that do not: whether prompts have choices, and `seeds` where none are given."""

    matrix: bool = False
    seeds: tuple[int, ...] = ()


NO_SPREAD = Spread()


@dataclass(frozen=True)
class Take:
    """One of the clips that a row stands for: its prompt, the seed of its first variant (None: derived from the prompt)
    and which variant it is, from 1. `suffix` tells it from the row's others, and stays when more are asked for.
    """

    prompt: str
    seed: int | None
    variant: int
    suffix: str = ""

    def name(self, name: str) -> str:
        """The name of the take of a row of this name."""
        suffix = self.suffix[:MAX_NAME_CHARS]
        return name[: MAX_NAME_CHARS - len(suffix)] + suffix

    def seed_after(self, derived: int) -> int:
        """Its seed; `derived` is that of its prompt and image."""
        return variant_seed(derived if self.seed is None else self.seed, self.variant)


@dataclass(frozen=True)
class Takes:
    """What a row stands for: texts between choices and choices in turn, seeds (None: one that is derived), variants."""

    prompt: tuple[tuple[str, ...], ...]
    seeds: tuple[int | None, ...] = (None,)
    variants: int = 1
    many_seeds: bool = field(default=False, kw_only=True)
    """Whether the row, or its batch, lists seeds: then names tell them."""

    @property
    def count(self) -> int:
        """How many clips; counted up no further than the rows that a batch may have, and one more."""
        choices = [len(options) for options in self.prompt if len(options) > 1]
        return min(prod(choices[:_COUNTED]) * len(self.seeds) * self.variants, MAX_ROWS + 1)

    def __iter__(self) -> Iterator[Take]:
        for words in product(*self.prompt):
            chosen = [word for word, options in zip(words, self.prompt, strict=True) if len(options) > 1]
            choice = "".join(f"-{word}" for word in chosen)
            for seed, variant in product(self.seeds, range(1, self.variants + 1)):
                told = f"-s{seed}" if self.many_seeds else ""
                yield Take("".join(words), seed, variant, choice + told + (f"-v{variant}" if variant > 1 else ""))


def parse_seeds(value: object) -> tuple[int, ...]:
    """The seeds of a list of whole numbers, or of text that has them between blanks or commas.

    Raises: InputError for what is no seed, for none, and for one that comes twice.
    """
    if isinstance(value, str):
        parts: Sequence[object] = value.replace(",", " ").split()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        raise InputError(f"seeds is {quoted(value)}, not a list of seeds", hint="one alone is given as seed")
    if not 0 < len(parts) <= MAX_VARIANTS:
        raise InputError(f"seeds has {len(parts)} seeds, must have 1 to {MAX_VARIANTS}")
    seeds = [_seed(part) for part in parts]
    if repeated := [seed for number, seed in enumerate(seeds) if seed in seeds[:number]]:
        raise InputError(f"seeds has {repeated[0]} twice, which would be one clip")
    return tuple(seeds)


def check_variants(variants: int) -> int:
    """The number itself. Raises InputError when a row may not stand for so many."""
    if not 1 <= variants <= MAX_VARIANTS:
        raise InputError(f"variants is {variants}, must be from 1 to {MAX_VARIANTS}")
    return variants


def parse_matrix(prompt: str) -> tuple[tuple[str, ...], ...]:
    """The texts and choices of a prompt, in turn: "a {red|blue} kite" is ("a ",), ("red", "blue"), (" kite",).

    Raises: InputError saying where, for a choice in another, without an end or a beginning, with nothing to choose
    from, with an empty alternative or with one twice.
    """
    parts: list[tuple[str, ...]] = []
    options: list[str] | None = None
    text, at = "", 0
    for sign in _SIGNS.finditer(prompt):
        text += prompt[at : sign.start()]
        at = sign.end()
        match sign[0]:
            case "{":
                if options is not None:
                    raise _fault(prompt, sign.start(), "opens a choice inside another")
                parts.append((text,))
                options, text = [], ""
            case "|" if options is not None:
                options.append(text)
                text = ""
            case "}":
                if options is None:
                    raise _fault(prompt, sign.start(), "closes a choice that none opens")
                parts.append(_choice([*options, text], prompt, sign.start()))
                options, text = None, ""
            case other:
                text += other[-1]
    if options is not None:
        raise _fault(prompt, prompt.rfind("{"), "opens a choice that has no end")
    return (*parts, (text + prompt[at:],))


def _choice(options: Sequence[str], prompt: str, at: int) -> tuple[str, ...]:
    found = tuple(option.strip() for option in options)
    if len(found) < 2:
        raise _fault(prompt, at, "ends a choice of one")
    if not all(found):
        raise _fault(prompt, at, "ends a choice with an empty alternative")
    if len(set(found)) < len(found):
        raise _fault(prompt, at, "ends a choice that has an alternative twice")
    return found


def _fault(prompt: str, at: int, what: str) -> InputError:
    around = prompt[max(0, at - 20) : at + 20]
    return InputError(f"the prompt's brace at character {at + 1} ({quoted(around)}) {what}", hint=_HOW)


def _seed(part: object) -> int:
    if isinstance(part, str) and _SEED.fullmatch(part):
        return check_seed(int(part))
    return check_seed(part)  # type: ignore[arg-type]  # checked there
