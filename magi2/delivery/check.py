"""Whether a delivered file is what was promised: marked once, the file that its sidecar tells of, and signed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magi2.artifacts.recipe import sha256_file
from magi2.delivery.credentials import Signature, read_signature
from magi2.delivery.sidecar import Sidecar, read_sidecar, sidecar_path
from magi2.errors import InputError, MediaError, MissingToolError
from magi2.files import disk_errors
from magi2.inputs.text import quoted, shown
from magi2.media.marks.read import Marks, read_marks
from magi2.types import StageName


@dataclass(frozen=True)
class Checked:
    """What a file says of itself, its sidecar and its signature; what could not be read is None.

    `problems` are promises that are not kept, as sentences; `notes` are worth knowing and break none.
    """

    file: Path
    sha256: str
    marks: Marks | None
    sidecar: Sidecar | None
    signature: Signature | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def matches(self) -> bool:
        """Whether the file has the bytes that its sidecar says were delivered."""
        return self.sidecar is not None and self.sidecar.delivered.sha256 == self.sha256

    @property
    def signature_state(self) -> str:
        """The state of the signature in a word, `unchecked` without the library that reads it."""
        return self.signature.state if self.signature else "unchecked"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "marked": self.marks is not None and not self.marks.problems,
            "aigc": self.marks.entry if self.marks else None,
            "source_types": list(self.marks.source_types) if self.marks else [],
            "tags": dict(self.marks.tags) if self.marks else {},
            "sidecar": "none" if self.sidecar is None else "matches" if self.matches else "differs",
            "signature": self.signature_state,
            "signed_by": self.signature.by if self.signature else None,
            "signed_at": self.signature.at if self.signature else None,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def check_delivered(path: Path, trust: Path | None = None) -> Checked:
    """Read a delivered file and the sidecar beside it. `trust` is a PEM file of certificates whose signers are trusted.

    Raises: InputError when the file cannot be read, ConfigError for a bad `trust`.
    """
    with disk_errors(path, InputError):
        digest = sha256_file(path)
    problems: list[str] = []
    marks = sidecar = signature = None
    try:
        marks = read_marks(path)
        problems += marks.problems
    except MediaError as error:
        problems.append(str(error))
    if sidecar_path(path).exists():
        try:
            sidecar = read_sidecar(sidecar_path(path))
        except InputError as error:
            problems.append(str(error))
    else:
        problems.append(f"no sidecar: {shown(sidecar_path(path).name)} is not beside it")
    try:
        signature = read_signature(path, trust)
    except MissingToolError as error:
        if sidecar and sidecar.signed:
            problems.append(f"the signature was not checked: {error}")
    if sidecar:
        problems += _against_sidecar(digest, marks, sidecar)
    problems += _of_signature(signature, sidecar)
    return Checked(path, digest, marks, sidecar, signature, tuple(problems), tuple(_notes(marks, sidecar, signature)))


def _against_sidecar(digest: str, marks: Marks | None, sidecar: Sidecar) -> Iterator[str]:
    """What the sidecar promises and the file does not keep."""
    if digest != sidecar.delivered.sha256:
        wanted = sidecar.delivered.sha256
        yield f"the file is not what was delivered: SHA-256 {digest[:12]}, the sidecar says {wanted[:12]}"
    if marks is None:
        return
    producer = sidecar.marking.get("producer")
    if marks.entry and isinstance(producer, str) and marks.entry["ContentProducer"] != producer:
        yield f"AIGC names {quoted(marks.entry['ContentProducer'])} as producer, the sidecar {quoted(producer)}"
    if sidecar.marking.get("provenance") in ("ids", "full"):
        mux = sidecar.stages.get(StageName.MUX)
        promised = {
            "magi2_seed": str(sidecar.seed),
            "magi2_profile": sidecar.profile.digest,
            "magi2_artifact": mux.key if mux else None,
        }
        for name, value in promised.items():
            if value is not None and marks.tags.get(name) != value:
                found = quoted(marks.tags[name]) if name in marks.tags else "missing"
                yield f"the tag {name} is {found}, the sidecar says {value[:12]}"


def _of_signature(signature: Signature | None, sidecar: Sidecar | None) -> Iterator[str]:
    if signature is None:
        return
    if signature.state == "invalid":
        yield f"the signature is invalid: {', '.join(map(shown, signature.problems)) or 'it says nothing more'}"
    elif signature.state == "none" and sidecar and sidecar.signed:
        yield "the file was delivered signed and has no signature"


def _notes(marks: Marks | None, sidecar: Sidecar | None, signature: Signature | None) -> Iterator[str]:
    if marks and marks.entry and not marks.entry["ContentProducer"]:
        yield "AIGC names no producer (MAGI2_CONTENT_PRODUCER was not set)"
    if signature and signature.state == "valid":
        by = shown(signature.by or "a certificate without a name")
        yield f"signed by {by}, whose authority is not in MAGI2_C2PA_TRUST"
    if sidecar and sidecar.marking.get("label"):
        yield "the sidecar says that a visible label is burnt in; nobody looked for it"
    if sidecar and sidecar.marking.get("watermark"):
        yield "the sidecar says that the picture has a watermark; nobody looked for it"
