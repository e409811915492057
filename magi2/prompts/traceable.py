"""Whether speech and readable text in a caption go back to what the user wrote."""

from __future__ import annotations

import re
import unicodedata

from magi2.prompts.words import has_cue

_QUOTED = re.compile(r'"[^"\n]+"|“[^”]+”|「[^」]+」|『[^』]+』')


def is_verbatim(text: str, prompt: str) -> bool:
    """Whether the words of `text` occur in the prompt, whatever their case, width, spacing and punctuation."""
    wanted = _letters(text)
    return bool(wanted) and wanted in _letters(prompt)


def speech_is_traceable(text: str, prompt: str) -> bool:
    """Whether the user supplied these words, or asked for speech without giving the words."""
    return is_verbatim(text, prompt) or _is_requested("speech", prompt)


def text_is_traceable(text: str, prompt: str) -> bool:
    """Whether the user supplied this readable text, or asked for some without giving it."""
    return is_verbatim(text, prompt) or _is_requested("text", prompt)


def _is_requested(kind: str, prompt: str) -> bool:
    # A prompt that quotes its words wants those words: "says" then announces the quotation, it asks for nothing more.
    return has_cue(f"{kind}_request", prompt) or (has_cue(kind, prompt) and not _QUOTED.search(prompt))


def _letters(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if char.isalnum())
