"""What one rank reads of the checkpoint, and the published slices for comparison."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.checkpoint import SafetensorsFolder
from magi2.models.preview.expert_rows import RankSource
from magi2.models.preview.expert_share import expert_share
from magi2.models.preview.state_dict import load_preview
from magi2.parallel.mesh import Mesh
from tests.models.preview.preview_goldens import CHECKPOINT, golden_json, tiny_config

PREFIX = "block.layers.1.mlp.moe_mlp"
SLICES = golden_json("tiny_checkpoint_ep_slices")["slices"]


class PaddedSlice(NamedTuple):
    """What the published loader gives one rank of an expert tensor [M*E, ...].

    `rows` consecutive rows from `first_row`, of which the first `real_rows` exist and the others are zeros; a rank
    without a real one `computes` nothing.
    """

    local_heads: int
    rows: int
    first_row: int
    real_rows: int

    @property
    def computes(self) -> bool:
        return self.real_rows > 0

    def cut(self, tensor: Tensor) -> Tensor:
        """The slice of a tensor of all experts."""
        out = torch.zeros(self.rows, *tensor.shape[1:], dtype=tensor.dtype)
        out[: self.real_rows] = tensor[self.first_row : self.first_row + self.real_rows]
        return out


def padded_slice(num_heads: int, num_experts: int, *, rank: int, size: int) -> PaddedSlice:
    """The slice of one of `size` ranks in the published layout, which pads the heads to a multiple of the ranks.

    Our own ranks hold an `ExpertShare`, without padding. Source: MAGI-2 preview inference code.
    """
    local_heads = -(-num_heads // size)
    rows = local_heads * num_experts
    return PaddedSlice(local_heads, rows, rank * rows, min(max(num_heads * num_experts - rank * rows, 0), rows))


@pytest.mark.parametrize("case", SLICES)
def test_padded_slices_are_the_published_ones(case: str) -> None:
    wanted, (size, rank) = SLICES[case], case.removeprefix("ep").split("_rank")
    slice_ = padded_slice(2, 8, rank=int(rank), size=int(size))
    folder = SafetensorsFolder(CHECKPOINT)
    sums = [
        float(slice_.cut(folder.read(f"{PREFIX}.{name}")).double().sum())
        # The published loader puts the moving average in the bias's place.
        for name in ("W_gate", "router.expert_bias_ema")
    ]
    assert [*slice_, slice_.computes] == [
        wanted[name] for name in ("local_heads", "rows", "first_row", "real_rows", "computes")
    ]
    assert sums == pytest.approx([wanted["W_gate_sum"], wanted["expert_bias_sum"]], abs=1e-6)


def source(rank: int, size: int, *, num_heads: int = 2) -> RankSource:
    share = expert_share(num_heads, 8, rank=rank, size=size)
    return RankSource(SafetensorsFolder(CHECKPOINT), share, num_heads, Mesh.single(torch.device("cpu")))


def test_ranks_together_read_every_expert_once() -> None:
    whole, parts = SafetensorsFolder(CHECKPOINT), [source(rank, 4) for rank in range(4)]
    for name in ("W_gate", "W_up", "W_down"):
        stored = whole.read(f"{PREFIX}.{name}")
        assert torch.equal(torch.cat([part.read(f"{PREFIX}.{name}") for part in parts]), stored)
        assert parts[1].shape(f"{PREFIX}.{name}") == (4, *stored.shape[1:])
    for rank, part in enumerate(parts):
        head = slice(rank // 2 * 8, rank // 2 * 8 + 8)
        assert torch.equal(part.read(f"{PREFIX}.gate"), whole.read(f"{PREFIX}.gate")[head])
        norm = "block.layers.1.mlp.pre_norm.weight"
        assert torch.equal(part.read(norm), whole.read(norm))


def test_ranks_read_in_one_order() -> None:
    assert source(0, 4).names() == source(3, 4).names() == SafetensorsFolder(CHECKPOINT).names()


def test_experts_of_another_architecture_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"W_gate: 16 experts, the model wants 24"):
        source(0, 2, num_heads=3).read(f"{PREFIX}.W_gate")


def test_a_mesh_of_one_rank_loads_the_plain_model() -> None:
    plain = load_preview(CHECKPOINT, tiny_config(), mesh=Mesh.single(torch.device("cpu")))
    assert type(plain).__name__ == "PreviewModel"
