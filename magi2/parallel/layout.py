"""Sizes of the three ways in which a model is spread over ranks, and which sizes go together."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from magi2.errors import ConfigError

_PART = re.compile(r"(sp|cfg|ep)([1-9]\d{0,5})")
_FIELDS = {"sp": "cp", "cfg": "cfg", "ep": "ep"}
_EXAMPLES = "for example sp8.cfg1.ep4, sp2 or sp1.cfg2"


@dataclass(frozen=True)
class ParallelLayout:
    """`cp` ranks share a sequence (Ulysses), `cfg` groups of those share the guidance branches, `ep` ranks the experts.

    Rank r works on branch r // cp (of cfg = 2) and holds place r % cp in its sequence; expert groups are blocks of
    `ep` neighbouring ranks of the whole. Raises: ConfigError naming the sizes and the nearest layouts that work.
    """

    cp: int = 1
    cfg: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        if min(self.cp, self.cfg, self.ep) < 1:
            raise ConfigError(f"layout {self}: sizes must be at least 1")
        if self.cfg > 2:
            raise ConfigError(f"layout {self}: guidance has 2 branches, not {self.cfg}", hint="cfg must be 1 or 2")
        if self.num_ranks % self.ep:
            whole = [size for size in range(1, self.num_ranks + 1) if self.num_ranks % size == 0]
            near = sorted(whole, key=lambda size: (abs(size - self.ep), size))[:2]
            hint = " or ".join(f"sp{self.cp}.cfg{self.cfg}.ep{size}" for size in sorted(near))
            raise ConfigError(f"layout {self}: ep {self.ep} does not divide the {self.num_ranks} ranks", hint=hint)

    @classmethod
    def parse(cls, text: str) -> ParallelLayout:
        """The layout that `str` writes, such as "sp8.cfg1.ep4". A part left out is 1, but `ep` left out is `cp`."""
        sizes: dict[str, int] = {}
        for part in text.strip().split("."):
            match = _PART.fullmatch(part)
            if match is None or _FIELDS[match[1]] in sizes:
                raise ConfigError(f"layout {text[:80]!r}: {part[:80]!r} is not understood", hint=_EXAMPLES)
            sizes[_FIELDS[match[1]]] = int(match[2])
        sizes.setdefault("ep", sizes.get("cp", 1))
        return cls(**sizes)

    @property
    def num_ranks(self) -> int:
        """Processes that the layout needs, one for each accelerator."""
        return self.cp * self.cfg

    def for_branches(self, branches: int) -> ParallelLayout:
        """How the ranks share a forward of so many guidance branches: one is split among all of them."""
        return replace(self, cp=self.num_ranks, cfg=1) if branches == 1 else self

    def __str__(self) -> str:
        return f"sp{self.cp}.cfg{self.cfg}.ep{self.ep}"


ONE_RANK = ParallelLayout()


@dataclass(frozen=True)
class ModelHeads:
    """What of a model has to divide: attention heads, key/value heads, MoE heads and the experts of one MoE head."""

    attention: int
    key_value: int
    moe: int
    experts: int

    def objection(self, layout: ParallelLayout) -> str | None:
        """Why a layout cannot carry the model, with the numbers; None when it can.

        Every MoE head is two halves of its experts, so `ep` may be as large as twice the heads and has to divide that.
        """
        if self.attention % layout.cp or self.key_value % layout.cp:
            return f"{self.attention} attention and {self.key_value} key/value heads do not divide by cp {layout.cp}"
        if 2 * self.moe % layout.ep:
            return f"{2 * self.moe} halves of {self.moe} MoE heads do not divide by ep {layout.ep}"
        if self.moe % layout.ep and self.experts % 2:
            return f"ep {layout.ep} halves MoE heads, whose {self.experts} experts are odd in number"
        return None


def check_heads(layout: ParallelLayout, heads: ModelHeads, branches: Collection[int] = (2,)) -> None:
    """Raises: ConfigError when the model's heads do not divide, naming the numbers and the nearest that do.

    `branches` are the numbers of guidance branches that steps evaluate: all ranks share a step of one.
    """

    def objection(other: ParallelLayout) -> str | None:
        found = ((heads.objection(other.for_branches(count)), count) for count in branches)
        texts = (f"{text}, in steps without guidance" if count < other.cfg else text for text, count in found if text)
        return next(texts, None)

    if text := objection(layout):
        works = nearest_layouts(layout, lambda other: objection(other) is None)
        raise ConfigError(f"layout {layout}: {text}", hint=name_layouts(works))


def nearest_layouts(layout: ParallelLayout, works: Callable[[ParallelLayout], bool]) -> list[ParallelLayout]:
    """At most two layouts that work, most like `layout` first: on as many ranks or fewer, else on up to eight times."""
    for ranks in (*range(layout.num_ranks, 0, -1), *range(layout.num_ranks + 1, 8 * layout.num_ranks + 1)):
        found = [other for other in _layouts_of(ranks) if works(other)]
        if found:
            return sorted(found, key=lambda other: _distance(other, layout))[:2]
    return []


def _layouts_of(ranks: int) -> list[ParallelLayout]:
    """Every layout of so many ranks."""
    return [
        ParallelLayout(ranks // cfg, cfg, ep)
        for cfg in (1, 2)
        if ranks % cfg == 0
        for ep in range(1, ranks + 1)
        if ranks % ep == 0
    ]


def _distance(other: ParallelLayout, layout: ParallelLayout) -> tuple[int, int, int]:
    return abs(other.cfg - layout.cfg), abs(other.ep - layout.ep), -other.ep


def name_layouts(layouts: list[ParallelLayout]) -> str:
    """A hint that names layouts."""
    return "nearest that work: " + ", ".join(map(str, layouts)) if layouts else "no layout works"
