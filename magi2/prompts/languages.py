"""The language of a spoken line, told from its script and its function words."""

from __future__ import annotations

import re
import unicodedata

_SCRIPTS = {
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "CJK": "Chinese",
    "CYRILLIC": "Russian",
    "GREEK": "Greek",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Hindi",
    "THAI": "Thai",
}

_FUNCTION_WORDS = {
    "English": {"the", "and", "is", "you", "are", "to", "of", "it", "my", "we", "i", "this", "that", "not"},
    "French": {"le", "la", "les", "et", "je", "vous", "est", "une", "des", "pas", "nous", "c'est", "bonjour"},
    "Spanish": {"el", "los", "las", "y", "que", "una", "por", "es", "hola", "gracias", "muy", "está"},
    "German": {"der", "die", "das", "und", "ich", "ist", "nicht", "ein", "eine", "wir", "sie", "danke"},
    "Italian": {"il", "gli", "che", "è", "sono", "per", "non", "ciao", "grazie", "una", "di"},
    "Portuguese": {"o", "os", "não", "uma", "você", "obrigado", "obrigada", "olá", "em", "é"},
}


def spoken_language(text: str) -> str:
    """English name of the language of `text`; "English" for Latin letters that match no other list better."""
    counts: dict[str, int] = {}
    for char in text:
        script = unicodedata.name(char, "").split(" ", 1)[0] if char.isalpha() else ""
        if language := _SCRIPTS.get(script):
            counts[language] = counts.get(language, 0) + 1
    if "Japanese" in counts and "Chinese" in counts:
        return "Japanese"  # kana never occur in Chinese, Han characters do in Japanese
    if counts:
        return max(counts, key=lambda language: (counts[language], language))
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text.lower())
    hits = {language: sum(word in known for word in words) for language, known in _FUNCTION_WORDS.items()}
    return max(hits, key=lambda language: hits[language])
