"""Order, positions, times and padding of the tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.layout import Packing, Source, grouping, latent_rows, pack, static_features, unpack
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.time_channels import normalised_time, time_channels, time_frequencies
from tests.models.preview.preview_goldens import (
    AUDIO_LENGTH,
    LATENT_SIZE,
    TIME_TOLERANCE,
    conditioning,
    golden_json,
    load_golden,
)

ROPE_CASES = golden_json("rope_coords")["cases"]


def make_packing(
    inputs: Conditioning, size: tuple[int, int, int] = LATENT_SIZE, audio: int = AUDIO_LENGTH, **options: Any
) -> Packing:
    defaults = {"use_ref_for_uncond": True, "branches": (0, 1), "interpolation": "extra"}
    return pack(size, audio, inputs, **{**defaults, **options})


def token_sequence(packing: Packing, inputs: Conditioning, *, use_ref_for_uncond: bool = True) -> Tensor:
    """The tokens of the goldens: features in packed order, padded with zeros to the widest source."""
    stored = load_golden("packing_i2v")
    features = {
        Source.VIDEO: latent_rows(stored["latent"]),
        Source.AUDIO: stored["audio_latent"][0],
        Source.PADDING: torch.zeros(48, 0),
        **static_features(inputs, use_ref_for_uncond=use_ref_for_uncond),
    }
    rows = [features[s.source][s.start : s.start + s.length] for s in packing.segments]
    return torch.cat([torch.nn.functional.pad(part, (0, 40 - part.shape[1])) for part in rows])


@pytest.mark.parametrize("case", ROPE_CASES)
def test_coordinates_equal_the_published_values_at_real_sizes(case: str) -> None:
    stored, facts = load_golden("rope_coords"), ROPE_CASES[case]
    images = tuple(ReferenceImage(torch.zeros(1, 1, 1, h, w), torch.zeros(1)) for h, w in facts["ref_hw"])
    inputs = Conditioning(torch.zeros(1, facts["text_len"], 1), torch.zeros(1, 0, 1), images)
    mode = "inter" if case == "inter_mode" else "extra"
    size, audio = tuple(facts["latent_thw"]), facts["audio_len"]
    packing = make_packing(inputs, size, audio, branches=(0,), interpolation=mode)
    assert packing.bounds == (0, facts["total_tokens"])
    assert packing.coords.double().sum(0).tolist() == facts["coords_sum_per_column"]
    assert torch.equal(packing.coords[stored[f"{case}.token_index"]], stored[f"{case}.coords"])


@pytest.mark.parametrize(("case", "golden_name"), [("t2v", "packing_t2v"), ("i2v", "packing_i2v")])
def test_packed_order_equals_the_published_one(case: str, golden_name: str) -> None:
    stored, inputs = load_golden(golden_name), conditioning(case)
    packing = make_packing(inputs)
    assert torch.equal(packing.coords, stored["coords"])
    assert torch.equal(packing.modalities().int(), stored["modality"])
    assert list(packing.bounds) == stored["cu_seqlens"].tolist()
    assert torch.equal(token_sequence(packing, inputs), stored["token_sequence"])


@pytest.mark.parametrize(("case", "golden_name"), [("t2v", "packing_t2v"), ("i2v", "packing_i2v")])
def test_padding_is_an_attention_sequence_of_its_own(case: str, golden_name: str) -> None:
    stored, inputs = load_golden(golden_name), conditioning(case)
    packing = make_packing(inputs, pad_to_multiple=48)
    tail = slice(-packing.count(Source.PADDING), None)
    assert list(packing.bounds) == stored["padded.cu_seqlens"].tolist()
    assert torch.equal(packing.coords[tail], stored["padded.tail_coords"])
    assert torch.equal(packing.modalities()[tail].int(), stored["padded.tail_modality"])
    assert torch.equal(token_sequence(packing, inputs)[tail], stored["padded.tail_token_sequence"])


def test_full_multiple_gets_no_padding() -> None:
    packing = make_packing(conditioning("t2v"), pad_to_multiple=101)
    assert packing.bounds == (0, 99, 202) and packing.count(Source.PADDING) == 0


def test_unconditional_branch_can_see_zeros_instead_of_the_image() -> None:
    stored, inputs = load_golden("packing_i2v"), conditioning("i2v")
    packing = make_packing(inputs, use_ref_for_uncond=False)
    tokens = token_sequence(packing, inputs, use_ref_for_uncond=False)
    assert torch.equal(tokens, stored["ref_zeroed_for_uncond.token_sequence"])


def test_two_images_equal_the_published_order() -> None:
    stored, inputs = load_golden("packing_i2v"), conditioning("two_images")
    packing = make_packing(inputs)
    assert torch.equal(packing.coords, stored["two_images.coords"])
    assert torch.equal(packing.modalities().int(), stored["two_images.modality"])
    assert torch.equal(token_sequence(packing, inputs), stored["two_images.token_sequence"])


def test_negative_text_may_have_no_token() -> None:
    inputs = Conditioning(torch.zeros(1, 7, 40), torch.zeros(1, 0, 40))
    packing = make_packing(inputs)
    assert packing.bounds == (0, 99, 191)
    assert all(segment.length for segment in packing.segments)


def test_grouped_order_sorts_by_modality_and_inverts() -> None:
    packing = make_packing(conditioning("i2v"), pad_to_multiple=48)
    to_grouped, to_packed = grouping(packing)
    grouped = packing.modalities()[to_grouped]
    assert torch.equal(grouped, grouped.sort().values)
    assert grouped.bincount(minlength=3).tolist() == list(packing.group_sizes)
    assert torch.equal(to_grouped[to_packed], torch.arange(packing.num_tokens))


@pytest.mark.parametrize(("size", "audio", "multiple"), [((0, 4, 6), 20, 1), (LATENT_SIZE, 0, 1), (LATENT_SIZE, 20, 0)])
def test_empty_clip_is_refused(size: tuple[int, int, int], audio: int, multiple: int) -> None:
    with pytest.raises(ContractError, match="at least 1"):
        make_packing(conditioning("t2v"), size, audio, pad_to_multiple=multiple)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (Conditioning(torch.zeros(1, 7, 39), torch.zeros(1, 0, 40)), "text_embeds"),
        (Conditioning(torch.zeros(1, 7, 40), torch.zeros(7, 40)), "negative_embeds"),
        (
            Conditioning(
                torch.zeros(1, 7, 40),
                torch.zeros(1, 0, 40),
                (ReferenceImage(torch.zeros(1, 16, 2, 4, 4), torch.zeros(40)),),
            ),
            r"references\[0\].latents",
        ),
    ],
)
def test_conditioning_of_another_model_is_refused(
    inputs: Conditioning, named: str, tiny_models: dict[str, PreviewModel]
) -> None:
    with pytest.raises(ContractError, match=named):
        tiny_models["fp32"].prepare(LATENT_SIZE, AUDIO_LENGTH, inputs)


def test_time_channels_equal_the_published_values(device: torch.device) -> None:
    stored = load_golden("time_channel", device)
    time = normalised_time(stored["timestep"])
    assert torch.equal(time, stored["t_normalized"])
    for width, expected in ((64, stored["embedding"]), (1, stored["embedding_dim1"]), (7, stored["embedding_dim7"])):
        channels = time_channels(time[: len(expected)], time_frequencies(width).to(device), width)
        torch.testing.assert_close(channels, expected, rtol=0, atol=TIME_TOLERANCE)
    assert time_channels(time, time_frequencies(0).to(device), 0).shape == (len(time), 0)


@pytest.mark.parametrize(("case", "golden_name"), [("t2v", "packing_t2v"), ("i2v", "packing_i2v")])
def test_time_overwrites_the_first_channels_of_every_token(
    case: str, golden_name: str, tiny_models: dict[str, PreviewModel], device: torch.device
) -> None:
    stored, model = load_golden(golden_name, device), tiny_models["fp32"]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(case, device), pad_to_multiple=48)
    rows = latent_rows(stored["latent"]), stored["audio_latent"][0]
    streams = model.embed(*rows, stored["timestep"][0], layout).flatten(1)[layout.to_packed]
    expected = torch.cat([stored["time_tokens"], stored["padded.tail_time_tokens"]])
    torch.testing.assert_close(streams[:, :64], expected, rtol=0, atol=TIME_TOLERANCE)


@pytest.mark.parametrize(("case", "golden_name"), [("t2v", "packing_t2v"), ("i2v", "packing_i2v")])
def test_velocities_are_unpacked_as_published(
    case: str,
    golden_name: str,
    tiny_models: dict[str, PreviewModel],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, model = load_golden(golden_name, device), tiny_models["fp32"]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(case, device))
    monkeypatch.setattr(model.post_adapter, "video", lambda rows: rows[:, :16])
    monkeypatch.setattr(model.post_adapter, "audio", lambda rows: rows)
    rows = model.velocity_rows(stored["unpack.input"][layout.to_grouped].unsqueeze(1), layout)
    video, audio = unpack(*rows, layout)
    assert torch.equal(video, stored["unpack.video"]) and torch.equal(audio, stored["unpack.audio"])
