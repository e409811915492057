"""Training the text tower: tokenizer, tower and reading heads; the frozen tower is written in the published layout."""

# Shapes: B captions, L tokens, H hidden size

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

from demo_world.reading import Request, read_caption
from demo_world.scenes import draw_scene
from demo_world.training.captions import FIGURE_SHARE, by_length, draw_text
from demo_world.training.files import save_weights
from demo_world.training.pace import Pace
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
from magi2.models.checkpoint import SINGLE_NAME
from magi2.models.text_encoder.tiny import TOKENIZER_CONFIG, text_config
from magi2.models.text_encoder.tokenizer import PromptTokenizer, load_prompt_tokenizer
from magi2.models.text_encoder.tower import PREFIX, SKIPPED_LAYERS

logger = logging.getLogger(__name__)

FOLDER = "text_encoder"
DEFAULT_STEPS = 600
BATCH_SIZE = 64
CPU_PARTS, ACCELERATOR_PARTS = 10, 2
"""Parts of like length that a batch is cut into: padding costs a processor, launches cost an accelerator."""
VOCAB_SIZE = 896
TOKENIZER_TEXTS = 8000
HIDDEN_SIZE = 128
UNCONDITIONAL_SHARE = 1 / 16
TOWER_RATE, HEAD_RATE = 1.5e-3, 3e-3
WARM_UP_STEPS = 40
EMBEDDING_DEVIATION = 0.5
CLIP_NORM = 1.0
MEASURED_TEXTS = 1536

TEXT_CONFIG = text_config(vocab_size=VOCAB_SIZE, hidden_size=HIDDEN_SIZE, num_layers=6)
"""The last two layers are never run, and nothing is stored of them."""


@dataclass(frozen=True)
class Lesson:
    """A text, and what it asks for; None where it asks for no scene."""

    text: str
    request: Request | None


def draw_lesson(rng: random.Random, *, held_out: bool) -> Lesson:
    """A text of any kind that the product hands to the tower, of held-out combinations or of the others."""
    if rng.random() < UNCONDITIONAL_SHARE:
        return Lesson(write_unconditional(rng) or "blurry", None)  # the empty text has no token to read from
    text = draw_text(draw_scene(rng, held_out=held_out), rng, has_figure=rng.random() < FIGURE_SHARE)
    return Lesson(text, read_caption(text))


def train(folder: Path, *, device: torch.device, pace: Pace, seed: int = 0) -> None:
    """Train the tower and write `folder`/text_encoder; accuracies on held-out combinations go to the log.

    Continues from the tower that is there, if one is, with its tokenizer and fresh heads.
    """
    rng = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tower, heads = new_tower(), ReadingHeads(HIDDEN_SIZE).to(device)
    tokenizer = _start(folder / FOLDER, tower, rng)
    tower.to(device)
    optimiser = torch.optim.AdamW(
        [{"params": heads.parameters(), "lr": HEAD_RATE}, {"params": tower.parameters(), "lr": TOWER_RATE}],
        weight_decay=0.01,
    )
    base_rates = [group["lr"] for group in optimiser.param_groups]
    for _ in pace:
        for group, base in zip(optimiser.param_groups, base_rates, strict=True):
            group["lr"] = base * pace.rate(warm_up=WARM_UP_STEPS, steady=0.0)
        optimiser.zero_grad()
        loss = _learn(tower, heads, tokenizer, [draw_lesson(rng, held_out=False) for _ in range(BATCH_SIZE)])
        nn.utils.clip_grad_norm_(tower.parameters(), CLIP_NORM)
        optimiser.step()
        pace.report(FOLDER, loss=loss)
        if pace.saves():
            _save(folder / FOLDER, tower)
    _save(folder / FOLDER, tower)
    lessons = [draw_lesson(rng, held_out=True) for _ in range(MEASURED_TEXTS)]
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(parameter.bfloat16())  # what was written
    for name, percent in reading_accuracy(tower, heads, tokenizer, lessons).items():
        logger.info("text tower reads %s right in %.2f %% of held-out texts", name, percent)


def new_tower() -> nn.Module:
    """A tower with fresh weights from torch's own generator, ending in the bare residual stream as rendering's does."""
    used = int(TEXT_CONFIG["num_hidden_layers"]) - SKIPPED_LAYERS
    cut = {"num_hidden_layers": used, "layer_types": TEXT_CONFIG["layer_types"][:used], "use_cache": False}
    tower: nn.Module = Qwen3_5TextModel(Qwen3_5TextConfig(**{**TEXT_CONFIG, **cut}))
    tower.norm = nn.Identity()
    nn.init.normal_(tower.get_parameter("embed_tokens.weight"), std=EMBEDDING_DEVIATION)
    return tower


@torch.no_grad()
def reading_accuracy(
    tower: nn.Module, heads: nn.Module, tokenizer: PromptTokenizer, lessons: list[Lesson]
) -> dict[str, float]:
    """Percent of texts of which each attribute is read right, being unsaid included."""
    right = dict.fromkeys(ATTRIBUTES, 0)
    for part, (ids, is_token) in _parts(tower, tokenizer, lessons, len(lessons) // BATCH_SIZE + 1):
        labels = class_labels([lesson.request for lesson in part])
        for name, logits in heads(read_rows(tower, ids, is_token), is_token).items():
            right[name] += int((logits.argmax(-1).cpu() == labels[name]).sum())
    return {name: 100 * count / len(lessons) for name, count in right.items()}


def _learn(tower: nn.Module, heads: nn.Module, tokenizer: PromptTokenizer, lessons: list[Lesson]) -> Tensor:
    """Add the gradients of one batch; gives its loss."""
    losses = []
    on_cpu = tower.get_parameter("embed_tokens.weight").device.type == "cpu"
    for part, (ids, is_token) in _parts(tower, tokenizer, lessons, CPU_PARTS if on_cpu else ACCELERATOR_PARTS):
        rows = read_rows(tower, ids, is_token)
        labels = class_labels([lesson.request for lesson in part])
        labels = {name: classes.to(ids.device) for name, classes in labels.items()}
        loss = reading_loss(rows, is_token, heads(rows, is_token), labels) * (len(part) / len(lessons))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def _parts(
    tower: nn.Module, tokenizer: PromptTokenizer, lessons: list[Lesson], count: int
) -> list[tuple[list[Lesson], tuple[Tensor, Tensor]]]:
    """The lessons in parts of like length, each with its token ids and which of them are tokens."""
    device = tower.get_parameter("embed_tokens.weight").device
    parts = []
    for indices in by_length([len(lesson.text) for lesson in lessons], count):
        part = [lessons[index] for index in indices]
        ids, is_token = pad_captions(tokenizer, [lesson.text for lesson in part])
        parts.append((part, (ids.to(device), is_token.to(device))))
    return parts


def _start(folder: Path, tower: nn.Module, rng: random.Random) -> PromptTokenizer:
    """The tokenizer of an earlier run, whose weights `tower` is given, or a new one."""
    weights = folder / SINGLE_NAME
    if not weights.exists():
        return _train_tokenizer(folder, rng)
    logger.info("%s: continues from %s", FOLDER, weights)
    tower.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in load_file(weights).items()})
    return load_prompt_tokenizer(folder)


def _train_tokenizer(folder: Path, rng: random.Random) -> PromptTokenizer:
    """The tokenizer, written to `folder`."""
    texts = [draw_lesson(rng, held_out=False).text for _ in range(TOKENIZER_TEXTS)]
    tokenizer = train_tokenizer(texts, vocab_size=VOCAB_SIZE)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n", encoding="utf-8")
    return PromptTokenizer(Tokenizer.from_str(tokenizer.to_str()))


def _save(folder: Path, tower: nn.Module) -> None:
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": TEXT_CONFIG}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {PREFIX + name: tensor.bfloat16() for name, tensor in tower.state_dict().items()}
    save_weights(folder / SINGLE_NAME, weights)
