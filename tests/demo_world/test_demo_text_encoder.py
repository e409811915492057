"""The text tower that ships: it loads as rendering loads it, and its rows say what a text asks for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from demo_world.training import text
from demo_world.training.clips import encode_texts
from demo_world.training.pace import Pace
from demo_world.training.reading import ATTRIBUTES, class_labels
from magi2.models.text_encoder.encoder import TextEncoder, load_text_encoder

FOLDER = Path(__file__).parents[2] / "examples" / "demo_checkpoint" / "text_encoder"
SIZE_LIMIT = 2.2e6
ROW_LIMIT = 320
RIDGE = 10.0


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return load_text_encoder(FOLDER, dtype=torch.float32)


def lessons_of(count: int, *, held_out: bool) -> list[text.Lesson]:
    rng = random.Random(61 + held_out)
    return [text.draw_lesson(rng, held_out=held_out) for _ in range(count)]


def summaries(encoder: TextEncoder, lessons: list[text.Lesson]) -> Tensor:
    """Mean and extremes of each text's rows: all that a reader gets here."""
    encoded = encode_texts(encoder, [lesson.text for lesson in lessons])
    ranges = zip(encoded.begin.tolist(), encoded.length.tolist(), strict=True)
    texts = [encoded.rows[begin : begin + length].float() for begin, length in ranges]
    return torch.stack([torch.cat([rows.mean(0), rows.amax(0), rows.amin(0), torch.ones(1)]) for rows in texts])


def test_it_is_whole_small_and_in_bf16(encoder: TextEncoder) -> None:
    stored = load_file(FOLDER / "model.safetensors")
    assert encoder.load_report.skipped == () and encoder.load_report.loaded == len(stored)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < SIZE_LIMIT


@pytest.mark.demo_world
def test_a_linear_reader_finds_what_held_out_texts_ask_for(encoder: TextEncoder) -> None:
    learned, asked = lessons_of(360, held_out=False), lessons_of(90, held_out=True)
    x, unseen = summaries(encoder, learned), summaries(encoder, asked)
    solver = torch.linalg.inv(x.T @ x + RIDGE * torch.eye(x.shape[1])) @ x.T
    labels = [class_labels([lesson.request for lesson in lessons]) for lessons in (learned, asked)]
    for name, values in ATTRIBUTES.items():
        reader = solver @ functional.one_hot(labels[0][name], len(values) + 1).float()
        right = ((unseen @ reader).argmax(1) == labels[1][name]).float().mean()
        assert right > (0.8 if name == "motion" else 0.9), (name, right)  # chance: 8 % of motions, half of the sizes


def test_texts_are_short_enough_for_the_transformers_training(encoder: TextEncoder) -> None:
    assert max(encoder.count_tokens(lesson.text) for lesson in lessons_of(300, held_out=False)) <= ROW_LIMIT


@pytest.mark.demo_world
def test_training_writes_a_tower_that_rendering_loads_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"BATCH_SIZE": 2, "TOKENIZER_TEXTS": 300, "MEASURED_TEXTS": 4}.items():
        monkeypatch.setattr(text, name, value)
    caplog.set_level("INFO")
    text.train(tmp_path, device=torch.device("cpu"), pace=Pace(steps=1), seed=3)
    embeds = load_text_encoder(tmp_path / "text_encoder", dtype=torch.float32).encode("a red circle").embeds
    assert embeds.shape[2] == text.HIDDEN_SIZE and bool(embeds.isfinite().all())
    assert all(f"reads {name} right" in caplog.text for name in ATTRIBUTES)
    assert "continues from" not in caplog.text
    text.train(tmp_path, device=torch.device("cpu"), pace=Pace(steps=1), seed=4)
    again = load_text_encoder(tmp_path / "text_encoder", dtype=torch.float32).encode("a red circle").embeds
    assert "continues from" in caplog.text and again.shape == embeds.shape
    assert 0 < (again - embeds).norm() < 0.1 * embeds.norm()
