"""What the text tower is trained on and by: a tokenizer of the published form, labels, and heads that read rows."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

from demo_world.reading import Request, read_caption
from demo_world.scenes import MOTIONS, SIZES, draw_scene
from demo_world.training.captions import draw_text
from demo_world.training.reading import (
    ATTRIBUTES,
    ReadingHeads,
    class_labels,
    pad_captions,
    read_rows,
    reading_loss,
    train_tokenizer,
)
from demo_world.wordings import write_unconditional
from magi2.models.text_encoder.tokenizer import PromptTokenizer

pytestmark = pytest.mark.demo_world

VOCAB_SIZE = 700


def captions_of(count: int, seed: int) -> list[str]:
    """Texts as the encoder gets them."""
    rng = random.Random(seed)
    return [draw_text(draw_scene(rng), rng, has_figure=index % 3 == 0) for index in range(count)]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(captions_of(600, 51), vocab_size=VOCAB_SIZE)


def test_the_tokenizer_reads_every_text_and_shortens_the_demos_own(trained: Tokenizer) -> None:
    tokenizer = PromptTokenizer(Tokenizer.from_str(trained.to_str()))
    assert trained.get_vocab_size() <= VOCAB_SIZE
    own = captions_of(50, 52)
    assert sum(len(tokenizer.tokenize(text)) for text in own) < 0.5 * sum(len(text.encode()) for text in own)
    foreign = "Ein Fuchs im Schnee, 雪中的狐狸 🦊"
    ids = tokenizer.tokenize(foreign).ids
    assert trained.decode(ids) == foreign


def test_padding_hides_no_token(trained: Tokenizer) -> None:
    tokenizer = PromptTokenizer(Tokenizer.from_str(trained.to_str()))
    texts = captions_of(4, 53)
    ids, is_token = pad_captions(tokenizer, texts)
    for row, mask, text in zip(ids, is_token, texts, strict=True):
        assert tuple(row[mask].tolist()) == tokenizer.tokenize(text).ids and not row[~mask].any()


def test_labels_say_what_a_caption_leaves_open() -> None:
    labels = class_labels([Request("circle", "red", "blue", "large", None, "up", "low"), None])
    assert labels["size"].tolist() == [SIZES.index("large"), 2] and labels["speed"].tolist() == [2, 2]
    assert labels["motion"].tolist() == [MOTIONS.index("up"), len(MOTIONS)]


def small_tower(vocab_size: int) -> nn.Module:
    """Two layers of the published kinds."""
    torch.manual_seed(54)
    config = Qwen3_5TextConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"], num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        use_cache=False,
    )  # fmt: skip
    tower: nn.Module = Qwen3_5TextModel(config)
    tower.norm = nn.Identity()
    return tower


def test_tower_and_heads_learn_together_and_every_parameter_takes_part(trained: Tokenizer) -> None:
    tower, heads = small_tower(trained.get_vocab_size()), ReadingHeads(32)
    texts = captions_of(11, 55)
    requests: list[Request | None] = [*map(read_caption, texts), None]
    tokenizer = PromptTokenizer(Tokenizer.from_str(trained.to_str()))
    ids, is_token = pad_captions(tokenizer, [*texts, write_unconditional(random.Random(3)) or "blurry"])

    def loss() -> Tensor:
        rows = read_rows(tower, ids, is_token)
        return reading_loss(rows, is_token, heads(rows, is_token), class_labels(requests))

    optimiser = torch.optim.AdamW([*tower.parameters(), *heads.parameters()], lr=3e-3)
    before = loss()
    before.backward()
    learners = [*tower.named_parameters(), *heads.named_parameters()]
    assert [name for name, p in learners if p.grad is None or not p.grad.any()] == []
    for _ in range(25):
        optimiser.step()
        optimiser.zero_grad()
        loss().backward()
    assert loss() < 0.8 * before


def test_heads_ignore_what_stands_behind_a_captions_end() -> None:
    torch.manual_seed(56)
    heads, rows = ReadingHeads(16), torch.randn(2, 6, 16)
    is_token = torch.arange(6) < torch.tensor([[4], [6]])
    changed = torch.where(is_token[..., None], rows, 100.0)
    for name, logits in heads(rows, is_token).items():
        assert logits.shape == (2, len(ATTRIBUTES[name]) + 1)
        torch.testing.assert_close(logits, heads(changed, is_token)[name])
