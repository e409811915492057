"""What the text tower learns: to make every attribute of a caption readable from its rows, word order included.

The transformer gives text no positions, so what stands in a row must already say who moves where. Heads that pool the
rows read each attribute, or that it is unsaid; they are dropped when the tower is frozen.
"""

# Shapes: B captions, L tokens, H hidden size, K classes of an attribute

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from tokenizers import Tokenizer, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from demo_world.reading import Request
from demo_world.scenes import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, SIZES, SOUNDS, SPEEDS
from magi2.models.text_encoder.tiny import SPECIAL_TOKENS, build_tokenizer
from magi2.models.text_encoder.tokenizer import PromptTokenizer, isolating_splitter

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **{"shape": SHAPES, "colour": COLOURS, "background": BACKGROUNDS, "size": SIZES, "speed": SPEEDS},
    **{"motion": MOTIONS, "sound": SOUNDS},
}
LEVEL_WEIGHT = 0.1
"""How strongly rows are drawn to a root mean square of 1."""


def train_tokenizer(captions: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """A tokenizer in the published form whose merges were learned from the pieces that rendering cuts text into."""
    tokenizer = build_tokenizer()
    stock = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([isolating_splitter(), stock])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.pre_tokenizer = stock  # the file holds the stock one; loading puts the splitter in front
    return tokenizer


def pad_captions(tokenizer: PromptTokenizer, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token ids [B, L] int64 of captions, zero behind their ends, and which are theirs [B, L] bool."""
    rows = [torch.tensor(tokenizer.tokenize(caption).ids, dtype=torch.int64) for caption in captions]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def class_labels(requests: Sequence[Request | None]) -> dict[str, Tensor]:
    """Per attribute the class of each caption, [B] int64; the last class is "unsaid", None says nothing at all."""
    labels = {}
    for name, values in ATTRIBUTES.items():
        said = [None if request is None else getattr(request, name) for request in requests]
        labels[name] = torch.tensor([len(values) if value is None else values.index(value) for value in said])
    return labels


class ReadingHeads(nn.Module):
    """One head per attribute: a learned query pools the rows, a linear layer names the class."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(hidden_size, hidden_size)
        self.queries = nn.ParameterDict({name: nn.Parameter(0.1 * torch.randn(hidden_size)) for name in ATTRIBUTES})
        self.classes = nn.ModuleDict({n: nn.Linear(hidden_size, len(values) + 1) for n, values in ATTRIBUTES.items()})

    def forward(self, rows_BLH: Tensor, is_token_BL: Tensor) -> dict[str, Tensor]:
        """Logits [B, K] per attribute."""
        keys_BLH = self.key(rows_BLH) / math.sqrt(rows_BLH.shape[2])
        logits = {}
        for name, query_H in self.queries.items():
            weights_BL = (keys_BLH @ query_H).masked_fill(~is_token_BL, -torch.inf).softmax(dim=1)
            logits[name] = self.classes[name]((weights_BL[..., None] * rows_BLH).sum(1))
        return logits


def read_rows(tower: nn.Module, ids_BL: Tensor, is_token_BL: Tensor) -> Tensor:
    """The tower's rows [B, L, H] for padded captions; rows behind a caption's end mean nothing."""
    rows: Tensor = tower(input_ids=ids_BL, attention_mask=is_token_BL.long()).last_hidden_state
    return rows


def reading_loss(
    rows_BLH: Tensor, is_token_BL: Tensor, logits: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> Tensor:
    """Sum of the attributes' cross entropies, and a mild pull of each row's root mean square to 1."""
    entropy = torch.stack([functional.cross_entropy(logits[name], labels[name]) for name in ATTRIBUTES]).sum()
    level = rows_BLH[is_token_BL].square().mean(-1).sqrt()
    return entropy + LEVEL_WEIGHT * (level - 1).square().mean()
