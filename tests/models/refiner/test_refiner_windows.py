"""Token order, blocks, windows and positions against the published ones."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from magi2.models.layers import apply_rope, rope_table
from magi2.models.refiner.positions import audio_coords, text_coords, video_coords
from magi2.models.refiner.windows import window_grid

BLOCK, RADIUS = (8, 4, 4), (2, 2, 2)
DELIVERY = (63, 68, 120)
BANDS = 10000.0 ** -(torch.arange(16) / 16)


@pytest.fixture(scope="module")
def delivery_grid():
    return window_grid(DELIVERY, BLOCK, RADIUS, BANDS)


@pytest.fixture(scope="module")
def delivery_facts(refiner_golden):
    facts = json.loads((refiner_golden / "real_size_blocks.json").read_text())
    return facts, load_file(refiner_golden / "real_size_blocks.safetensors")


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_text_positions_are_the_published_ones(refiner_golden, length):
    wanted = load_file(refiner_golden / "coords_edge_cases.safetensors")
    cpu = torch.device("cpu")
    coords = torch.cat([video_coords((2, 3, 4), torch.arange(24)), text_coords(length, cpu)])
    assert torch.equal(coords, wanted[f"text{length}.coords"])
    table = rope_table(coords, 10000.0 ** -(torch.arange(4) / 4))
    assert (table - wanted[f"text{length}.rope"]).abs().max() <= 1e-5


@pytest.mark.parametrize("length", [1, 2, 9, 250])
def test_audio_positions_are_the_published_ones(refiner_golden, length):
    wanted = load_file(refiner_golden / "coords_edge_cases.safetensors")
    cpu = torch.device("cpu")
    coords = torch.cat(
        [
            video_coords((2, 3, 4), torch.arange(24)),
            audio_coords(length, cpu),
            text_coords(len(wanted[f"audio{length}.coords"]) - 24 - length, cpu),
        ]
    )
    assert torch.equal(coords, wanted[f"audio{length}.coords"])
    table = rope_table(coords, 10000.0 ** -(torch.arange(4) / 4))
    assert (table - wanted[f"audio{length}.rope"]).abs().max() <= 1e-5


def test_delivery_size_positions_and_rotation_are_the_published_ones(refiner_golden, delivery_grid):
    wanted = load_file(refiner_golden / "rope_real_size.safetensors")
    places = wanted["sequence_position"]
    assert torch.allclose(BANDS, wanted["bands"], rtol=1.2e-7, atol=0)
    assert torch.equal(delivery_grid.order[places].int(), wanted["raster_token"])
    assert torch.equal(video_coords(DELIVERY, delivery_grid.order[places]), wanted["coords"])
    assert (delivery_grid.rope[places] - wanted["rope"]).abs().max() <= 1e-5
    rotated = apply_rope(wanted["q"][0], delivery_grid.rope[places])
    assert (rotated - wanted["q_rotated"][0]).abs().max() <= 1e-5


def test_delivery_size_blocks_see_what_they_should(delivery_grid, delivery_facts):
    facts, tensors = delivery_facts
    key_blocks, key_tokens = torch.zeros(4080, dtype=torch.int64), torch.zeros(4080, dtype=torch.int64)
    for group in delivery_grid.groups:
        key_blocks[group.query_blocks] = group.key_blocks.shape[1]
        key_tokens[group.query_blocks] = len(group.key_slots)
    ranges = torch.stack([delivery_grid.starts, delivery_grid.starts + delivery_grid.lengths], dim=1)
    assert delivery_grid.blocks == tuple(facts["block_grid"])
    assert torch.equal(ranges, tensors["block_ranges"])
    assert torch.equal(key_blocks, tensors["key_block_count"])
    assert torch.equal(key_tokens, tensors["key_token_count"])
    assert int(key_blocks.sum()) == facts["num_block_pairs"]
    pairs = sum(g.query_tokens.numel() * len(g.key_slots) for g in delivery_grid.groups)
    assert pairs == facts["token_pairs_video_video"]


def test_selected_delivery_size_blocks_list_their_key_blocks(delivery_grid, delivery_facts):
    for selected in delivery_facts[0]["selected"].values():
        block_id = selected["block_id"]
        (group,) = [g for g in delivery_grid.groups if bool((g.query_blocks == block_id).any())]
        row = int((group.query_blocks == block_id).nonzero())
        assert group.key_blocks[row].tolist() == selected["key_blocks"]
        assert [int(group.query_tokens[row, 0]), int(group.query_tokens[row, -1]) + 1] == selected["token_range"]
        ranges = [
            torch.arange(int(delivery_grid.starts[key]), int(delivery_grid.starts[key] + delivery_grid.lengths[key]))
            for key in selected["key_blocks"]
        ]
        assert torch.equal(group.key_tokens(row, row + 1)[0], torch.cat(ranges))


def test_structure_of_the_delivery_size_is_linear_in_tokens(delivery_grid):
    tensors = [value for value in vars(delivery_grid).values() if isinstance(value, torch.Tensor)]
    tensors += [value for group in delivery_grid.groups for value in vars(group).values()]
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert size_bytes < 450 * delivery_grid.num_tokens  # 96 fp32 of rotary table and four int64 a token, and few more


def test_token_mask_of_a_small_grid_is_the_published_one(refiner_golden, seen_tokens, mask_of_ranges):
    wanted = load_file(refiner_golden / "window_masks.safetensors")
    grid = window_grid((5, 7, 6), (2, 2, 2), (1, 1, 1), BANDS)
    assert torch.equal(seen_tokens(grid, 3), wanted["A.token_mask"].bool())
    ranges = {"q_ranges": wanted["A.q_ranges"], "k_ranges": wanted["A.k_ranges"]}
    assert torch.equal(seen_tokens(grid, 3), mask_of_ranges(ranges, 213))
    assert torch.equal(grid.restore.int(), wanted["A.token_restore_order"][:210])
    assert torch.equal(video_coords(grid.size, grid.order), wanted["A.coords"][:210])


def test_block_mask_of_a_middle_sized_grid_is_the_published_one(refiner_golden):
    wanted = load_file(refiner_golden / "window_masks.safetensors")
    grid = window_grid((26, 22, 21), BLOCK, RADIUS, BANDS)
    mask = torch.zeros(144, 144, dtype=torch.uint8)
    for group in grid.groups:
        mask[group.query_blocks[:, None], group.key_blocks] = 1
    assert torch.equal(mask, wanted["B.block_mask"])
    assert torch.equal(torch.stack([grid.starts, grid.starts + grid.lengths], 1), wanted["B.block_ranges"])
    assert torch.equal(grid.order.int(), wanted["B.token_order"][: grid.num_tokens])
    assert torch.equal(grid.restore.int(), wanted["B.token_restore_order"][: grid.num_tokens])


@pytest.mark.parametrize(
    ("name", "size", "tail"), [("forward_t2v", (11, 9, 22), 7), ("forward_with_audio", (3, 5, 6), 28)]
)
def test_ranges_of_the_forward_cases_are_the_published_ones(
    refiner_golden, seen_tokens, mask_of_ranges, name, size, tail
):
    wanted = load_file(refiner_golden / f"{name}.safetensors")
    grid = window_grid(size, BLOCK, RADIUS, BANDS)
    assert torch.equal(seen_tokens(grid, tail), mask_of_ranges(wanted, grid.num_tokens + tail))
