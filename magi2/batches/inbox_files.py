"""What is said of files in the inbox that start no run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from magi2.batches.file_options import OPTIONS_SUFFIX
from magi2.batches.rows import SUFFIXES

_TAKEN = f"batch files end in {', '.join(SUFFIXES)}"
_GROWING = (".partial", ".part", ".tmp", ".crdownload", ".filepart", ".download", ".swp")
_GROWING_S = 3600.0
"""Whatever is still called so after an hour was forgotten."""
_PICTURES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_ADVICE = {
    ".ndjson": "call it .jsonl",
    ".jsonlines": "call it .jsonl",
    ".txt": "for one prompt a line call it .jsonl and write each line as JSON text; a prompt that a row names may stay",
    ".xlsx": "save the sheet as .csv",
    ".xls": "save the sheet as .csv",
    ".ods": "save the sheet as .csv",
    ".yml": f"options of a file are in NAME{OPTIONS_SUFFIX}",
    ".yaml": f"options of a file are in NAME{OPTIONS_SUFFIX}",
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".rar", ".tar", ".tgz"), "unpack it"),
}


def is_batch_name(path: Path) -> bool:
    """Whether a file is called as batch files are."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def why_not_taken(path: Path, age_s: float) -> str | None:
    """Why a file that is `age_s` seconds old starts no run; None where nobody need be told, or it starts one."""
    if path.name.startswith("."):
        return None
    kind = _kind(path)
    if is_batch_name(path):
        return kind and f"it is {kind}"
    if kind or path.suffix.lower() in _PICTURES:  # folders and pictures are there for rows to name
        return None
    if path.suffix.lower() in _GROWING:
        return f"its name says that it is not whole: rename it when it is; {_TAKEN}" if age_s > _GROWING_S else None
    if path.name.endswith(OPTIONS_SUFFIX):
        name = path.name.removesuffix(OPTIONS_SUFFIX)
        return f"it waits for its batch file: {' or '.join(name + suffix for suffix in SUFFIXES)}"
    advice = _ADVICE.get(path.suffix.lower())
    return f"{_TAKEN}; {advice}" if advice else f"{_TAKEN}; what rows name may stay"


def _kind(path: Path) -> str | None:
    """What there is in place of a regular file, links followed."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "a link that leads nowhere" if path.is_symlink() else None
    if stat.S_ISDIR(mode):
        return "a folder"
    return None if stat.S_ISREG(mode) else "no regular file"
