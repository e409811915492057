"""The words every part of the project shares: stages, figures and clips."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class StageName(StrEnum):
    """The stages a clip passes, in order; `NEGATIVE` is the negative prompt's embedding, shared by many clips."""

    ENHANCE = "enhance"
    NEGATIVE = "negative"
    ENCODE = "encode"
    PREVIEW = "preview"
    REFINE = "refine"
    DECODE = "decode"
    MUX = "mux"


@dataclass(frozen=True)
class FigureImage:
    """A reference image: `<Figure number>` of the prompt, where it lies and what it is."""

    number: int
    path: Path
    sha256: str


@dataclass(frozen=True)
class Clip:
    """One prompt rendered under one profile with one seed. Identity is content, never a position in a list."""

    prompt: str
    seed: int
    profile_name: str
    profile_digest: str
    figures: tuple[FigureImage, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)
    tags: tuple[str, ...] = field(default=(), compare=False)
    priority: int = field(default=0, compare=False)

    @property
    def clip_id(self) -> str:
        """SHA-256 hex over prompt, images, seed and profile."""
        identity = {
            "prompt": self.prompt,
            "figures": [[figure.number, figure.sha256] for figure in self.figures],
            "seed": self.seed,
            "profile": self.profile_digest,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    @property
    def short_id(self) -> str:
        """The first 12 characters of `clip_id`, for logs and file names."""
        return self.clip_id[:12]
