"""Names of delivered files: a template with a fixed list of fields, and what every file system takes.

A name is a path below a target, with `/` between its parts. What fills a field is free text and is made safe; what a
person wrote as the template, and the whole after filling, is refused where it is not.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from magi2.errors import InputError
from magi2.inputs.text import quoted
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, Delivery

ENDING = ".mp4"
DEFAULT_TEMPLATE = "{batch}/{name}_{seed}_{profile}.mp4"
OUT = "--out"
"""The target that is the folder which a command was given; no configured one can have this name."""
OUT_TEMPLATE = "{name}_{seed}_{profile}.mp4"
"""In that folder, which is for the clips of the command alone."""
FIELDS = ("batch", "name", "seed", "profile", "clip")
DELIVERED = {
    ENDING: CLIP,
    ".jpg": POSTER,
    ".contact_sheet.jpg": CONTACT_SHEET,
    ".vtt": "subtitles.vtt",
    ".json": "sidecar.json",
}
"""What is delivered, by what follows a clip's stem."""
COMPANIONS = tuple(ending for ending in DELIVERED if ending != ENDING)
"""What lies beside a clip, or may."""

MAX_VALUE_BYTES = 80
"""Of what fills a field, so that one long name does not make a row unusable."""
MAX_PART_BYTES = 200
"""Of 255 that file systems take, which leaves room for a companion's ending and the id of a clip."""
MAX_NAME_BYTES = 700
"""Of 1024 that S3 takes, with the target's prefix."""
_FIELD = re.compile(r"\{([^{}]*)\}")
_FORBIDDEN = frozenset('<>:"\\|?*/')
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])", re.IGNORECASE)


@dataclass(frozen=True)
class NameContext:
    """What fills the fields of a template, besides the clip."""

    batch: str
    row: str
    """The name of the clip's row."""


def check_template(template: str) -> str:
    """The template in the form in which it is used. Raises InputError for one that no clip could be named by."""
    normal = unicodedata.normalize("NFC", template)
    for field in _FIELD.findall(normal):
        if field not in FIELDS:
            raise InputError(f"delivery name {quoted(template)}: unknown field {quoted(field)}", hint=_fields_hint())
    if set("{}") & set(_FIELD.sub("", normal)):
        raise InputError(f"delivery name {quoted(template)}: a brace that is no field's", hint=_fields_hint())
    check_name(_FIELD.sub("x", normal))
    return normal


def fill(template: str, clip: Clip, context: NameContext) -> str:
    """The name that a template gives a clip. Raises InputError for a template or a result that is not safe."""
    values = {
        "batch": context.batch,
        "name": context.row,
        "seed": str(clip.seed),
        "profile": clip.profile_name,
        "clip": clip.short_id,
    }
    safe = {field: safe_value(value) for field, value in values.items()}
    return check_name(_FIELD.sub(lambda found: safe[found[1]], check_template(template)))


def safe_value(text: str) -> str:
    """Free text as a part of a name, never empty and never with a `/`; cut to `MAX_VALUE_BYTES`."""
    normal = unicodedata.normalize("NFC", text)
    plain = "".join("_" if char.isspace() or _is_unsafe(char) else char for char in normal)
    cut = plain.encode()[:MAX_VALUE_BYTES].decode(errors="ignore")
    value = re.sub("__+", "_", cut).strip("._") or "clip"
    return f"_{value}" if _is_reserved(value) else value


def check_name(name: str) -> str:
    """The name itself. Raises InputError, saying why, when some file system or target would not take it as it is."""
    if reason := _fault(name):
        raise InputError(f"delivery name {quoted(name)}: {reason}")
    return name


def with_suffix(name: str, clip: Clip) -> str:
    """The name that a clip gets where its own is taken by another: its short id before the ending."""
    return f"{name.removesuffix(ENDING)}_{clip.short_id}{ENDING}"


def companion(name: str, ending: str) -> str:
    """The name of what lies beside a clip."""
    return name.removesuffix(ENDING) + ending


def without_collisions(clips: Sequence[Clip]) -> tuple[Clip, ...]:
    """The clips of a batch, none of which takes a name that another's files have at the same target.

    All that would collide get their short id, whichever comes first. Names are equal when a file system that does not
    tell cases apart takes them for one.
    """
    taken = Counter(key for clip in clips for delivery in clip.deliveries for key in _keys(delivery))

    def settled(clip: Clip, delivery: Delivery) -> Delivery:
        is_taken = any(taken[key] > 1 for key in _keys(delivery))
        return replace(delivery, name=with_suffix(delivery.name, clip)) if is_taken else delivery

    return tuple(
        replace(clip, deliveries=tuple(settled(clip, delivery) for delivery in clip.deliveries)) for clip in clips
    )


def folded(name: str) -> str:
    """What two names share that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _keys(delivery: Delivery) -> set[tuple[str, str]]:
    names = (delivery.name, *(companion(delivery.name, ending) for ending in COMPANIONS))
    return {(delivery.target, folded(name)) for name in names}


def _fault(name: str) -> str | None:
    if not name.endswith(ENDING):
        return f"must end in {ENDING}"
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"longer than {MAX_NAME_BYTES} bytes"
    if name != unicodedata.normalize("NFC", name):
        return "is not in the composed form of Unicode (NFC)"
    faults = (_part_fault(part) for part in name.removesuffix(ENDING).split("/"))
    return next((fault for fault in faults if fault), None)


def _part_fault(part: str) -> str | None:
    """What is wrong with one part of a name, the last without its ending."""
    if part in ("", ".", ".."):
        return "must be a relative path without empty parts, . and .."
    if bad := next((char for char in part if _is_unsafe(char)), None):
        return f"has {quoted(bad)}, which some file system does not take"
    if part != part.strip(" .") or part != part.strip():
        return f"{quoted(part)} begins or ends with a space or a dot"
    if _is_reserved(part):
        return f"{quoted(part)} is a device on Windows"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"{quoted(part)} is longer than {MAX_PART_BYTES} bytes"
    return None


def _is_reserved(part: str) -> bool:
    return _RESERVED.fullmatch(part.partition(".")[0].rstrip()) is not None


def _is_unsafe(char: str) -> bool:
    """Whether some file system refuses a character, or nobody sees it."""
    return char in _FORBIDDEN or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _fields_hint() -> str:
    return f"fields are {', '.join(f'{{{field}}}' for field in FIELDS)}, and nothing else in braces"
