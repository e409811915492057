"""Text for people: what users wrote without the characters that control a terminal, and times in words."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text in which control characters, but for line ends and tabs, and half surrogates show as replaced."""
    text = text.replace("\r\n", "\n")
    kept = (char if char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160) else "\ufffd" for char in text)
    return "".join(kept).encode("utf-8", "replace").decode()


def duration(seconds: float) -> str:
    """A time for people: `12.3 s`, `4 min 05 s`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
