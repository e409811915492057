"""From drawn scenes to weights in the published layout: clips with their texts, and the command that trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from demo_world.training import clips as clips_module
from demo_world.training import preview
from demo_world.training.clips import Clips, Job, encode_texts, make_clips, prepare_clips
from demo_world.training.pace import Pace
from demo_world.training.run import Options, train_parts
from demo_world.video_latents import DISTANCE_CHANNELS
from magi2.errors import CheckpointError
from magi2.models.preview.config import MoeConfig, PreviewConfig
from magi2.models.preview.state_dict import load_preview
from magi2.models.text_encoder.encoder import load_text_encoder
from magi2.models.text_encoder.figures import pool_figures
from magi2.models.text_encoder.tiny import write_tiny_text_encoder

pytestmark = pytest.mark.demo_world

TEXT_CHANNELS = 16
LATENT_FRAMES = 2
CPU = torch.device("cpu")
MODEL = PreviewConfig(
    num_layers=2,
    hidden_size=32,
    head_dim=16,
    num_query_groups=2,
    intermediate_factor=6.0,
    text_in_channels=TEXT_CHANNELS,
    mm_layers=(0,),
    moe_config=MoeConfig(
        num_heads=2,
        num_experts=2,
        top_k=1,
        moe_layers=(1,),
        expert_intermediate_size=16,
        shared_expert_intermediate_size=16,
        modality_specific_expert_intermediate_size=16,
    ),
)


@pytest.fixture(scope="module")
def text_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "text_encoder"
    write_tiny_text_encoder(folder, seed=7, hidden_size=TEXT_CHANNELS, num_layers=4)
    return folder


@pytest.fixture(scope="module")
def clips(text_encoder: Path) -> Clips:
    return prepare_clips(text_encoder, count=6, latent_frames=LATENT_FRAMES, device=CPU, seed=5, workers=1)


def test_clips_are_made_again_alike_and_have_two_texts_each() -> None:
    job = Job("seed", 3, has_figure=True, latent_frames=LATENT_FRAMES)
    first, second = make_clips(job), make_clips(job)
    assert torch.equal(first.video, second.video) and torch.equal(first.images, second.images)
    assert first.texts == second.texts and len(first.texts) == 6
    assert first.video.shape == (3, 48, 2, 4, 8) and first.audio.shape == (3, 10, 64)
    assert len(make_clips(Job("seed", 3, has_figure=False, latent_frames=LATENT_FRAMES)).images) == 0


def test_a_reference_image_has_the_colours_of_its_clip() -> None:
    made = make_clips(Job("look", 8, has_figure=True, latent_frames=LATENT_FRAMES))
    colours = made.video[:, DISTANCE_CHANNELS:, :1]
    assert torch.equal(made.images[:, DISTANCE_CHANNELS:], colours)
    assert not torch.equal(made.images[:, :DISTANCE_CHANNELS], made.video[:, :DISTANCE_CHANNELS, :1])


def test_texts_are_encoded_together_as_rendering_encodes_each(text_encoder: Path) -> None:
    encoder = load_text_encoder(text_encoder, dtype=torch.float32)
    texts = ["a red circle moves up", "", "The object of <Figure 1> spins in place, with a low tone", "no <Figure 2>"]
    encoded = encode_texts(encoder, texts)
    for index, text in enumerate(texts):
        alone = encoder.encode(text)
        begin, length = int(encoded.begin[index]), int(encoded.length[index])
        torch.testing.assert_close(encoded.rows[begin : begin + length].float(), alone.embeds[0], rtol=1e-2, atol=1e-2)
        figure = pool_figures(alone, [1]).embeds[0]
        torch.testing.assert_close(encoded.figure_embeds[index].float(), figure, rtol=1e-2, atol=1e-2)


def test_a_batch_pads_texts_and_keeps_an_image_with_its_own_clip(clips: Clips) -> None:
    shape = clips.shape(5)
    assert shape.counts == (3, 2) and shape.latent_size == (2, 4, 8)
    batch = clips.draw(shape, torch.Generator().manual_seed(3))
    for text, mask, rows in zip(batch.texts, batch.is_text, shape.text_rows, strict=True):
        assert text.shape[1] == mask.shape[1] == rows
    shown = batch.images[:, DISTANCE_CHANNELS:].mean(dim=(2, 3, 4))
    torch.testing.assert_close(shown, batch.video[3:, DISTANCE_CHANNELS:, 0, 0, 0], rtol=0, atol=0.1)
    with pytest.raises(ValueError, match="a batch of 1"):
        clips.shape(1)


def test_without_its_text_a_clip_keeps_image_and_figure_token_as_in_rendering(
    clips: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, batches = clips.shape(6), []
    for share in (0.0, 1.0):
        monkeypatch.setattr(clips_module, "UNCONDITIONAL_SHARE", share)
        batches.append(clips.draw(shape, torch.Generator().manual_seed(4)))
    named, nothing = batches
    assert torch.equal(named.video, nothing.video) and torch.equal(named.images, nothing.images)
    assert torch.equal(named.figure_embeds, nothing.figure_embeds) and named.figure_embeds.any(dim=1).all()
    assert all((mask.sum(1) > 20).all() for mask in named.is_text)
    assert all(mask.sum() < other.sum() for mask, other in zip(nothing.is_text, named.is_text, strict=True))


def run(clips: Clips, folder: Path, steps: int) -> None:
    preview.train_on(clips, folder, pace=Pace(steps=steps), seed=1, compiled=False, batch_size=3, config=MODEL)


def test_a_run_writes_weights_that_rendering_loads_and_the_next_run_continues(
    clips: Clips, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run(clips, tmp_path, 2)
    first = load_preview(tmp_path, MODEL).state_dict()
    assert "continues from" not in caplog.text and "step 1, video" in caplog.text
    run(clips, tmp_path, 1)
    assert "continues from" in caplog.text
    second = load_preview(tmp_path, MODEL).state_dict()
    changes = [(first[name].float() - second[name].float()).abs().max() for name in first]
    assert 0 < max(changes) < 0.1


def test_a_part_is_refused_before_those_that_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not trained yet, preview needs it"):
        train_parts(tmp_path, ["preview"], Options(CPU))


def test_the_demos_weights_keep_to_their_share_of_the_checkpoint() -> None:
    with torch.device("meta"):
        model = preview.PreviewModel(preview.demo_config())
    stored = preview.stored(model.state_dict())
    assert sum(tensor.numel() * tensor.element_size() for tensor in stored.values()) < 8.2e6
