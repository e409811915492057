"""Living subjects that a prompt names with a count word ("a young woman", 两只猫)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from magi2.prompts.words import alternatives, load_words

_MAX_SUBJECTS = 6


@dataclass(frozen=True)
class Subject:
    """A noun phrase in the user's words, how many it counts, its noun, and where it stands first."""

    phrase: str
    count: int
    noun: str
    start: int


@cache
def _english() -> re.Pattern[str]:
    words = load_words("entities")
    counts = "|".join(words["counts"])
    stop = "|".join(words["not_modifiers"])
    nouns = alternatives({*words["singular"], *words["plural"]})
    heads = "|".join(words["not_followed_by"])
    return re.compile(
        rf"(?<![A-Za-z0-9])(?P<count>{counts})\s+(?:(?!(?:{stop})\s)[A-Za-z][A-Za-z-]*,?\s+){{0,3}}?"
        rf"(?P<noun>{nouns})(?![-'’])(?!\s+(?:{heads})(?![A-Za-z]))",
        re.IGNORECASE,
    )


@cache
def _chinese() -> re.Pattern[str]:
    words = load_words("entities")
    return re.compile(
        rf"(?P<count>[{''.join(words['zh_counts'])}])(?:{'|'.join(words['zh_classifiers'])})"
        rf"(?:[^\s,.!?。、\uff0c\uff01\uff1f\uff1a的一两二三四五六\x00]{{1,6}}的)?"
        rf"(?P<noun>[黑白红橘灰黄棕小大老]?色?(?:{alternatives((), words['zh_nouns'])}))"
        rf"(?!{'|'.join(words['zh_not_followed_by'])})"
    )


def find_subjects(masked: str) -> list[Subject]:
    """Subjects in order of first mention, each noun once, at most six; none when nothing is certain."""
    words = load_words("entities")
    singular, plural = set(words["singular"]), set(words["plural"])
    found: list[Subject] = []
    for match in _english().finditer(masked):
        count, noun = words["counts"][match["count"].lower()], match["noun"].lower()
        if noun in (singular if count == 1 else plural):
            found.append(Subject(" ".join(match[0].split()), count, noun, match.start()))
    for match in _chinese().finditer(masked):
        found.append(Subject(match[0], words["zh_counts"][match["count"]], match["noun"], match.start()))
    by_noun: dict[str, Subject] = {}
    for subject in sorted(found, key=lambda subject: subject.start):
        by_noun.setdefault(subject.noun, subject)
    return list(by_noun.values())[:_MAX_SUBJECTS]


def is_mentioned(subject: Subject, masked: str) -> bool:
    """Whether the subject's noun stands in this stretch of text."""
    english = [subject.noun] if subject.noun.isascii() else []
    chinese = [] if english else [subject.noun]
    return re.search(alternatives(english, chinese), masked, re.IGNORECASE) is not None
