"""The byte counts in docs/parallel.md are those of the formula, which ranks' tests compare with what they counted."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.parallel.collectives import even_split
from magi2.parallel.layout import ParallelLayout
from tests.parallel.preview_traffic import step_traffic

PAGE = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text()
ROW = re.compile(r"^\| (sp\S+|published, padded) \| ([\d,]+(?: \| [\d,]+){5}) \|$", re.MULTILINE)
ROWS = {row[1]: [int(cell.replace(",", "")) for cell in row[2].split("|")] for row in ROW.finditer(PAGE)}
AUDIO = audio_latent_count(10.0)
VIDEO = [prod(latent_size(10.0, *size)) for size in ((256, 448), (512, 896))]


def megabytes(layout: ParallelLayout, video: int) -> tuple[float, float, float]:
    """Attention, experts and everything that a rank sends in a step, mean of the ranks."""
    branch = video + AUDIO
    lengths = even_split(branch if layout.cfg == 2 else 2 * branch, layout.cp) * layout.cfg
    ranks = range(layout.num_ranks)
    latents = tuple((count, 0) for count in lengths)
    parts = [step_traffic(PreviewConfig(), layout, lengths, latents, rank=rank, itemsize=2) for rank in ranks]
    attention, experts = (sum(part[kind] for part in parts) / len(ranks) / 1e6 for kind in ("attention", "experts"))
    return attention, experts, sum(sum(part.values()) for part in parts) / len(ranks) / 1e6


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("sp")])
def test_bytes_in_the_docs_are_those_of_the_formula(name: str) -> None:
    wanted = [round(value) for video in VIDEO for value in megabytes(ParallelLayout.parse(name), video)]
    assert ROWS[name] == pytest.approx(wanted, abs=1)


def test_published_padding_costs_what_the_docs_say() -> None:
    """16 heads on 8 ranks, tokens padded to 48; 64 fp32 values of every token are gathered."""
    wanted = []
    for video in VIDEO:
        tokens = -(-2 * (video + AUDIO) // 48) * 48
        own, rest = tokens // 8, tokens - tokens // 8
        attention = 40 * 256 * (own * 72 * 7 // 8 + rest * 24 // 8) / 1e6
        experts = 36 * 512 * 2 * (7 * own + rest) / 1e6
        wanted += [attention, experts, attention + experts + own * 7 * 64 * 4 / 1e6]
    assert ROWS["published, padded"] == pytest.approx([round(value) for value in wanted], abs=1)


def test_layouts_that_nodes_use_are_in_the_docs() -> None:
    assert {"sp8.cfg1.ep4", "sp8.cfg1.ep8", "sp4.cfg2.ep4", "sp2.cfg1.ep2"} <= ROWS.keys()
