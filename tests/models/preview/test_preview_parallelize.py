"""What one rank of many prepares, seen without the others."""

from __future__ import annotations

import pytest
import torch

from magi2.errors import ConfigError, ContractError
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.layout import Segment
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.parallelize import ParallelPreview, RankLayout
from magi2.models.preview.state_dict import init_random_
from magi2.parallel.collectives import Group
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from tests.models.preview.preview_goldens import AUDIO_LENGTH, LATENT_SIZE, conditioning, load_golden, tiny_config


def rank_model(text: str, rank: int = 0) -> ParallelPreview:
    """A rank's model without processes: it can prepare, but not run."""
    layout = ParallelLayout.parse(text)
    blocks = [tuple(range(rank // size * size, (rank // size + 1) * size)) for size in (layout.cp, layout.ep)]
    groups = [Group(ranks, rank - ranks[0]) for ranks in (tuple(range(layout.num_ranks)), *blocks)]
    model = ParallelPreview(tiny_config(), Mesh(layout, rank, torch.device("cpu"), *groups))
    init_random_(model, torch.Generator().manual_seed(3))
    return model


def rows(segments: tuple[Segment, ...]) -> list[tuple[str, int]]:
    return [(s.source.value, row) for s in segments for row in range(s.start, s.start + s.length)]


@pytest.mark.parametrize("text", ["sp4", "sp2.cfg2", "sp1.cfg2"])
def test_ranks_together_hold_every_token_once_and_in_order(text: str) -> None:
    inputs = conditioning("i2v")
    whole = PreviewModel(tiny_config())
    init_random_(whole, torch.Generator().manual_seed(3))
    wanted = whole.prepare(LATENT_SIZE, AUDIO_LENGTH, inputs)
    ranks = ParallelLayout.parse(text).num_ranks
    layouts = [rank_model(text, rank).prepare(LATENT_SIZE, AUDIO_LENGTH, inputs) for rank in range(ranks)]
    assert [row for layout in layouts for row in rows(layout.segments)] == rows(wanted.segments)
    tables = torch.cat([layout.rope[layout.to_packed] for layout in layouts])
    assert torch.equal(tables, wanted.rope[wanted.to_packed])
    for rank, layout in enumerate(layouts):
        assert layout.token_counts == layouts[0].token_counts
        assert sum(layout.group_sizes) == layout.token_counts[rank] == len(layout.rope)


def test_a_rank_embeds_its_own_text_alone() -> None:
    inputs = conditioning("i2v")
    layouts = [rank_model("sp4", rank).prepare(LATENT_SIZE, AUDIO_LENGTH, inputs) for rank in range(4)]
    embedded = [sum(len(rows) for rows in layout.static_rows.values()) for layout in layouts]
    assert sum(embedded) <= 7 + 11 + 2 * 13 and min(embedded) < 20


def test_attention_spans_the_branch_that_the_rank_works_on() -> None:
    inputs = conditioning("t2v")
    both, conditional, unconditional = (
        rank_model(text, rank).prepare(LATENT_SIZE, AUDIO_LENGTH, inputs).sequences.bounds
        for text, rank in (("sp4", 1), ("sp2.cfg2", 1), ("sp2.cfg2", 2))
    )
    assert (both, conditional, unconditional) == ((0, 99, 202), (0, 99), (0, 103))


def test_one_branch_is_split_among_the_ranks_of_two_as_among_those_of_one() -> None:
    inputs = conditioning("i2v")
    for rank in range(4):
        parted, shared = (
            rank_model(text, rank).prepare(LATENT_SIZE, AUDIO_LENGTH, inputs, guided=False)
            for text in ("sp2.cfg2.ep4", "sp4.ep4")
        )
        assert parted.group.ranks == shared.group.ranks == (0, 1, 2, 3)
        assert parted.segments == shared.segments and parted.token_counts == shared.token_counts
        assert parted.num_branches == 1 and parted.sequences.bounds == shared.sequences.bounds


def test_one_branch_is_refused_where_its_heads_do_not_divide_by_all_ranks() -> None:
    heads = tiny_config().num_heads
    model = rank_model(f"sp{heads}.cfg2.ep1")
    with pytest.raises(ConfigError, match=f"do not divide by cp {2 * heads}"):
        model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("t2v"), guided=False)


def test_fewer_tokens_than_ranks_are_refused() -> None:
    inputs = Conditioning(torch.zeros(1, 1, 40), torch.zeros(1, 0, 40))
    with pytest.raises(ContractError, match="3 tokens cannot be shared by 4 ranks"):
        rank_model("sp4").prepare((1, 1, 1), 1, inputs, guided=False)


def test_a_clip_prepared_for_one_rank_is_refused() -> None:
    model, stored = rank_model("sp2"), load_golden("model_forward")
    plain = PreviewModel.prepare(rank_model("sp1"), LATENT_SIZE, AUDIO_LENGTH, conditioning("t2v"))
    assert not isinstance(plain, RankLayout)
    with pytest.raises(ContractError, match="prepared by a model on one rank"):
        model(stored["latent"], stored["audio_latent"], torch.tensor(417), plain)


def test_heads_that_do_not_divide_are_refused_before_any_weight() -> None:
    with pytest.raises(ConfigError, match="4 attention and 4 key/value heads do not divide by cp 3"):
        rank_model("sp3.ep1")
