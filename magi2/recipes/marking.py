"""What is written into a delivered file besides picture and sound, and how it counts in the file's recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from magi2.artifacts.recipe import JSON, Recipe, sha256_text
from magi2.config.profile import Profile, settings_content
from magi2.errors import InputError
from magi2.media.delivery import METADATA_LIMIT_BYTES
from magi2.media.marks.aigc import AIGC_KEY, aigc_entry

MARKING_VERSION = 1
"""Raised when other entries, or the same ones in another form, are written for the same settings."""
RECORD_KEY = "magi2_record"
"""The tag with prompt, caption and settings."""


@dataclass(frozen=True)
class Marking:
    """What a deployment decides about marks: `producer` is whom files name as the producer of their content."""

    producer: str = ""


UNSIGNED = Marking()
"""What a deployment says that was told nothing."""


def producer_line(producer: str) -> str:
    """Who the files will name as the producer of their content, in words."""
    if not producer:
        return "files name nobody: the mark AIGC has an empty ContentProducer (set MAGI2_CONTENT_PRODUCER)"
    return f"files name {producer} as the producer of their content"


def marking_config(profile: Profile, marking: Marking) -> dict[str, JSON]:
    """Every configured value that is written into the files of a profile."""
    provenance = profile.delivery.provenance
    return {
        "version": MARKING_VERSION,
        "producer": marking.producer,
        "provenance": provenance,
        **({} if provenance == "none" else {"profile": profile.digest()}),
    }


def marked_texts(profile: Profile, prompt: str, caption: str) -> dict[str, str]:
    """The digests of the texts that are written into a clip's file, for its recipe.

    Raises: InputError when they are longer than an entry can be, so that no clip fails for it when all else is made.
    """
    if profile.delivery.provenance != "full":
        return {}
    size = len(f"{RECORD_KEY}={_record(profile, prompt, caption)}".encode())
    if size > METADATA_LIMIT_BYTES:
        raise InputError(
            f"delivery.provenance full: prompt, caption and settings are {size} bytes, a file's entry has at most "
            f"{METADATA_LIMIT_BYTES}",
            hint="use delivery.provenance=ids",
        )
    return {"prompt": sha256_text(prompt), "caption": sha256_text(caption)}


def clip_tags(profile: Profile, marking: Marking, recipe: Recipe, prompt: str, caption: str) -> Mapping[str, str]:
    """The metadata of the file that `recipe`, one of mux, makes of a clip."""
    tags = {"comment": "made with MAGI-2 Preview", AIGC_KEY: aigc_entry(marking.producer, recipe.key)}
    if profile.delivery.provenance != "none":
        tags |= {
            "magi2_artifact": recipe.key,
            "magi2_decoded_from": recipe.inputs["decode"],
            "magi2_profile": profile.digest(),
            "magi2_seed": str(recipe.seed),
        }
    if profile.delivery.provenance == "full":
        tags[RECORD_KEY] = _record(profile, prompt, caption)
    return tags


def _record(profile: Profile, prompt: str, caption: str) -> str:
    settings = settings_content(profile.model_dump(mode="json"))
    content = {"prompt": prompt, "caption": caption, "settings": settings}
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
