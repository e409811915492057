"""Prompts: enhancement into structured captions, and the texts that the text encoder gets."""

from magi2.prompts.caption import Caption
from magi2.prompts.client import CaptionClient, ChatClient, EndpointSettings, Reply
from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import DecodeError, decode_strict
from magi2.prompts.enhance import MODES, enhance, resolve_mode
from magi2.prompts.figures import Figure, add_figure_hint, check_figure_mentions, parse_image_argument
from magi2.prompts.instructions import template_digest
from magi2.prompts.markdown import render_markdown
from magi2.prompts.offline import STRUCTURER_VERSION
from magi2.prompts.words import words_digest

__all__ = [
    "MODES",
    "STRUCTURER_VERSION",
    "Caption",
    "CaptionClient",
    "ChatClient",
    "DecodeError",
    "EndpointSettings",
    "Figure",
    "Reply",
    "add_figure_hint",
    "check_figure_mentions",
    "compact_prompt",
    "decode_strict",
    "enhance",
    "parse_image_argument",
    "render_markdown",
    "resolve_mode",
    "template_digest",
    "words_digest",
]
