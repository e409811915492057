"""What is written into a delivered file besides picture and sound, and how it counts in the file's recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from magi2.artifacts.recipe import JSON, Recipe, sha256_file, sha256_text
from magi2.config.profile import Profile, settings_content
from magi2.config.settings import Settings
from magi2.errors import InputError
from magi2.media.delivery import METADATA_LIMIT_BYTES, LabelSpec
from magi2.media.label import check_label, find_font
from magi2.media.marks.aigc import AIGC_KEY, aigc_entry
from magi2.media.watermarks import InstalledWatermark, find_watermark

MARKING_VERSION = 1
"""Raised when other entries, or the same ones in another form, are written for the same settings."""
RECORD_KEY = "magi2_record"
"""The tag with prompt, caption and settings."""


@dataclass(frozen=True)
class Font:
    """A font file and the SHA-256 of its content."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Marking:
    """What a deployment decides about marks.

    Files name `producer` as that of their content; `font` sets the visible label of a profile that has one, and
    `watermark` is the installed one of the name that a profile gives.
    """

    producer: str = ""
    font: Font | None = None
    watermark: InstalledWatermark | None = None


UNSIGNED = Marking()
"""What a deployment says that was told nothing."""


def marking_of(profile: Profile, settings: Settings) -> Marking:
    """What this deployment writes into the files of a profile.

    Raises: ConfigError when the profile wants a label that cannot be set here (there is no font, it lacks a character,
    or the text has no room in the picture), or a watermark that is not allowed or not installed.
    """
    name = profile.delivery.watermark
    watermark = None if name is None else find_watermark(name, settings.watermarks)
    return Marking(settings.content_producer, _label_font(profile, settings.label_font), watermark)


def _label_font(profile: Profile, setting: Path | None) -> Font | None:
    if profile.delivery.label is None:
        return None
    path = find_font(setting)
    check_label(profile.delivery.label, path, profile.delivered_size)
    return Font(path, sha256_file(path))


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
        **_label_config(profile.delivery.label, marking.font),
        **_watermark_config(profile.delivery.watermark, marking.watermark),
    }


def _label_config(label: LabelSpec | None, font: Font | None) -> dict[str, JSON]:
    if label is None:
        return {}
    return {"label": {**asdict(label), "font": font.sha256 if font else None}}


def _watermark_config(name: str | None, installed: InstalledWatermark | None) -> dict[str, JSON]:
    if name is None:
        return {}
    return {"watermark": asdict(installed) if installed else {"name": name}}


def marked_texts(profile: Profile, prompt: str, caption: str) -> dict[str, str]:
    """The digests of the texts that are written into a clip's file, for its recipe."""
    if profile.delivery.provenance != "full":
        return {}
    return {"prompt": sha256_text(prompt), "caption": sha256_text(caption)}


def check_texts(profile: Profile, prompt: str, caption: str) -> None:
    """Raises InputError when the texts that are to be written into a clip's file are longer than an entry can be."""
    if profile.delivery.provenance != "full":
        return
    size = len(f"{RECORD_KEY}={_record(profile, prompt, caption)}".encode())
    if size > METADATA_LIMIT_BYTES:
        raise InputError(
            f"delivery.provenance full: prompt, caption and settings are {size} bytes, a file's entry has at most "
            f"{METADATA_LIMIT_BYTES}",
            hint="use delivery.provenance=ids",
        )


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
