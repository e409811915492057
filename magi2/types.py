"""The words every part of the project shares: stages, figures, clips and seeds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args

from magi2.errors import InputError

MAX_SEED = 2**53 - 1  # the largest integer that JSON readers keep exact
CLIP, POSTER, CONTACT_SHEET = "clip.mp4", "poster.jpg", "contact_sheet.jpg"  # the files of a finished clip
THUMBNAIL = "thumbnail.webp"  # one more, which clips that were made by older versions lack


class StageName(StrEnum):
    """The stages a clip passes, in order."""

    ENHANCE = "enhance"
    ENCODE = "encode"
    PREVIEW = "preview"
    REFINE = "refine"
    DECODE = "decode"
    MUX = "mux"
    DELIVER = "deliver"

    @property
    def position(self) -> int:
        """How many stages come before this one."""
        return list(StageName).index(self)

    @property
    def before(self) -> tuple[StageName, ...]:
        """The stages that come before this one, in order."""
        return tuple(StageName)[: self.position]

    @property
    def onward(self) -> tuple[StageName, ...]:
        """This stage and those that come after it, in order."""
        return tuple(StageName)[self.position :]


ACCELERATOR_STAGES = (StageName.ENCODE, StageName.PREVIEW, StageName.REFINE, StageName.DECODE)
"""Those that compute on accelerators, in order."""

NEGATIVE = "negative"
"""The store's folder of negative prompts' embeddings: no stage, and no clip's own; encode makes one for many clips."""

ARTIFACT_STAGES = StageName.DELIVER.before
"""Those that leave an artifact in the store, in order; `deliver` takes the last one elsewhere."""

ARTIFACT_FOLDERS: tuple[str, ...] = (StageName.ENHANCE, NEGATIVE, *ARTIFACT_STAGES[1:])
"""Every folder of artifacts that a store has, in the order in which a clip's are made."""


def profile_stages(profile: Mapping[str, Any]) -> tuple[StageName, ...]:
    """The stages that make a clip of a profile, in order. `profile` is resolved, as documents hold it."""
    has_refiner = profile.get("refiner") is not None
    return tuple(stage for stage in ARTIFACT_STAGES if has_refiner or stage is not StageName.REFINE)


def clip_stages(profile: Mapping[str, Any], *, is_delivered: bool) -> tuple[StageName, ...]:
    """The stages that a clip of a profile passes in a batch, in order; the last is for clips that have a target."""
    return profile_stages(profile) + ((StageName.DELIVER,) if is_delivered else ())


@dataclass(frozen=True)
class FigureImage:
    """A reference image: `<Figure number>` of the prompt, where it lies and what it is.

    `treatment` is what is done so that the model sees what viewers show, see `magi2.media.image.Picture`; nothing is
    to most pictures.
    """

    number: int
    path: Path
    sha256: str
    treatment: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delivery:
    """Where a batch brings a clip: a configured target by its name, and a path below it."""

    target: str
    name: str


Rest = Literal["continuous", "moving", "rest", "any"]
"""What is expected to go on in a clip, see `Expect`."""


RESTS: tuple[Rest, ...] = get_args(Rest)
"""All of them, what asks most first."""


@dataclass(frozen=True)
class Expect:
    """What is expected of a clip's motion and sound, which decides what of it counts as a defect and nothing else.

    `moving` (the default): it never stops for long. `continuous`: nor is there a cut. `rest`: once it has stopped,
    which may be at once, it does not begin again. `any`: it may stop and begin as it likes.
    """

    motion: Rest = "moving"
    sound: Rest = "moving"

    def __or__(self, other: Expect) -> Expect:
        """What both expect together: the more of either."""
        return Expect(*(min(pair, key=RESTS.index) for pair in zip(astuple(self), astuple(other), strict=True)))


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
    caption: str | None = field(default=None, compare=False)
    """What to encode for the prompt, of a clip that is rendered again from its record: no stage asks for another."""
    deliveries: tuple[Delivery, ...] = field(default=(), compare=False)
    expect: Expect = field(default=Expect(), compare=False)

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


def check_seed(seed: int) -> int:
    """The seed itself. Raises InputError when it is not an integer from 0 to 2^53 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}, must be an integer from 0 to {MAX_SEED}")
    return seed


def derive_seed(prompt: str, image_sha256: str | None) -> int:
    """The seed, 0..2^32-1, of a clip that names none: the same prompt and image give the same one under any profile.

    The first four bytes, big endian, of SHA-256 over the UTF-8 bytes of `prompt` without leading and trailing white
    space, followed, when there is an image, by one zero byte and the 32 raw bytes of its SHA-256.
    Raises InputError when the prompt has an unpaired surrogate or `image_sha256` is not 64 hexadecimal digits.
    """
    try:
        message = prompt.strip().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"prompt is not valid Unicode: {error}") from error
    if image_sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", image_sha256):
            raise InputError(f"image digest is {image_sha256[:80]!r}, must be 64 hexadecimal digits of SHA-256")
        message += b"\0" + bytes.fromhex(image_sha256)
    return int.from_bytes(hashlib.sha256(message).digest()[:4], "big")


def variant_seed(seed: int, variant: int) -> int:
    """The seed of a clip's variant, counted from 1: `seed` itself for the first, 0..2^48-1 for the others.

    The first six bytes, big endian, of SHA-256 over the two numbers: asking for more variants moves none of the others.
    """
    if variant == 1:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} variant {variant}".encode()).digest()[:6], "big")
