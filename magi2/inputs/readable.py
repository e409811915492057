"""Text as readers see it: what looks the same becomes the same text, and what shows nothing is refused.

Prompts, names, tags and negative prompts pass here before anything is made of them, so two rows that nobody can tell
apart are one clip, and what is encoded is what was read.
"""

from __future__ import annotations

import unicodedata

import regex

from magi2.errors import InputError

_LINE_ENDS = regex.compile(r"\r\n|[\r\v\f\x85\u2028\u2029]")
_BLANK_SIGNS = regex.compile(r"[[\p{Zs}\u2800\u3164\uffa0]--[ \u3000]]", regex.V1)
"""Blanks of other widths, that of braille and the fillers of Hangul, which are letters to a machine alone."""
_GAPS = regex.compile(r"(?<=\S)[^\S\n]+")
_PARAGRAPHS = regex.compile(r"\n{3,}")
_UNREADABLE = regex.compile(r"[[\p{Cc}\p{Noncharacter_Code_Point}\ufffc\ufffd]--[\t\n]]", regex.V1)
"""Control characters, and what stands for a character or an object that was lost on the way."""
_INVISIBLE = regex.compile(
    r"[[\p{Default_Ignorable_Code_Point}\ufff9-\ufffb\U0001d159]"
    r"--[\u200c\u200d\ufe0e\ufe0f\u115f\u1160\u180b-\u180f\U000e0020-\U000e007f]]",
    regex.V1,
)
_DOUBLED_JOINERS = regex.compile(r"([\u200c\u200d])\1+")
_JOINS_ON, _JOINS_BACK = r"(?<=[\p{jt=D}\p{jt=L}]\p{jt=T}*+)", r"(?=\p{jt=T}*+[\p{jt=R}\p{jt=D}])"
_STACKS = r"[\p{InSC=Virama}\p{InSC=Invisible_Stacker}\p{InSC=Pure_Killer}]"
_MATTERS = (
    rf"(?<={_STACKS})[\u200c\u200d](?=[\p{{L}}\p{{M}}\s\p{{P}}]|\Z)",  # conjuncts and half forms of Indic scripts
    rf"(?<=[\p{{L}}\p{{M}}])[\u200c\u200d](?={_STACKS})",
    rf"{_JOINS_ON}\u200c{_JOINS_BACK}",  # letters that would join, as in Persian
    rf"{_JOINS_ON}\u200d(?!\p{{jt=T}}*+[\p{{jt=R}}\p{{jt=D}}])",  # a form that asks for a neighbour it does not have
    rf"(?<![\p{{jt=D}}\p{{jt=L}}]\p{{jt=T}}*+)\u200d{_JOINS_BACK}",
    r"(?<=\p{Extended_Pictographic}[\ufe0f\U0001f3fb-\U0001f3ff]?)\u200d(?=\p{Extended_Pictographic})",
    r"(?<=[\p{Emoji}--[0-9#*]])\ufe0e",  # a sign drawn as text
    r"(?<=[\p{Emoji}--\p{Emoji_Presentation}--[0-9#*]])\ufe0f",  # a sign drawn as a picture
    r"(?<=[0-9#*])\ufe0f(?=\u20e3)",
    r"(?<=\U0001f3f4)[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f",  # flags of regions
    r"\u115f(?=[\u1161-\u11a7])|(?<=[\u1100-\u115e])\u1160",  # syllables of old Korean that lack a letter
    r"(?<=\p{Script=Mongolian})(?:[\u180b-\u180d\u180f]|\u180e(?=\p{Script=Mongolian}))",
)
_SOMETIMES_INVISIBLE = regex.compile(rf"(?P<matters>{'|'.join(_MATTERS)})|\p{{Default_Ignorable_Code_Point}}", regex.V1)
_SIGN = regex.compile(r"[[\p{L}\p{N}\p{P}\p{S}]--\p{Default_Ignorable_Code_Point}]", regex.V1)
_FIGURE = regex.compile(r"(<Figure [0-9]+>)")


def readable(text: str, what: str) -> str:
    """`text` in NFC, less what cannot be seen: marks of direction, joiners without effect, spare blanks and line ends.

    Indentation is kept, and so are joiners and selectors that change what is drawn: in Indic and Arabic scripts,
    Mongolian, old Korean and emoji. `<Figure N>` stays a token whatever follows it. The result is its own normal form.
    Raises: InputError beginning with `what` when nothing shows, or for control characters and lost ones.
    """
    if not text.strip():
        raise InputError(f"{what} is empty")
    text = _LINE_ENDS.sub("\n", text)
    if found := _UNREADABLE.search(text):
        raise InputError(f"{what} holds U+{ord(found[0]):04X}, which no reader sees", hint="save it as plain text")
    if not text.isascii():
        text = _composed(_without_invisible(_BLANK_SIGNS.sub(" ", text)))
    lines = (_GAPS.sub(_gap, line).rstrip() for line in text.split("\n"))
    text = _PARAGRAPHS.sub("\n\n", "\n".join(lines)).strip()
    if not _SIGN.search(text):
        raise InputError(f"{what} shows nothing: a reader sees none of its characters")
    return text


def readable_line(text: str, what: str) -> str:
    """As `readable`, on one line."""
    return " ".join(readable(text, what).split())


def _without_invisible(text: str) -> str:
    text = _DOUBLED_JOINERS.sub(r"\1", _INVISIBLE.sub("", text))
    kept: str = _SOMETIMES_INVISIBLE.sub(lambda found: found["matters"] or "", text)
    return kept


def _composed(text: str) -> str:
    """NFC. A token of a figure is left out: composing it with a mark that follows would destroy it."""
    parts = _FIGURE.split(text)
    return "".join(part if index % 2 else unicodedata.normalize("NFC", part) for index, part in enumerate(parts))


def _gap(found: regex.Match[str]) -> str:
    """One blank for a run of them: the wide one of Chinese and Japanese where it has one."""
    return "\u3000" if "\u3000" in found[0] else " "
