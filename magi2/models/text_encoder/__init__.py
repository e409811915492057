"""The text encoder: Qwen3.5's text tower, cut two layers before its end, with MAGI-2's tokenizer quirk."""

from magi2.models.text_encoder.encoder import TextEncoder, TextEncoding, load_text_encoder
from magi2.models.text_encoder.figures import FigureTokens, pool_figures
from magi2.models.text_encoder.tiny import write_tiny_text_encoder
from magi2.models.text_encoder.tokenizer import PromptTokenizer, Tokens, load_prompt_tokenizer
from magi2.models.text_encoder.tower import expected_tensors

__all__ = [
    "FigureTokens",
    "PromptTokenizer",
    "TextEncoder",
    "TextEncoding",
    "Tokens",
    "expected_tensors",
    "load_prompt_tokenizer",
    "load_text_encoder",
    "pool_figures",
    "write_tiny_text_encoder",
]
