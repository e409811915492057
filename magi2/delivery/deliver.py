"""One clip brought to its targets: the stored file and what goes along, create-only, with a receipt in the batch.

The clip's file comes after its pictures and subtitles, so that whoever waits for it finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from magi2.artifacts.recipe import sha256_file
from magi2.artifacts.store import ArtifactStore
from magi2.batches.receipts import load_receipts, save_receipt
from magi2.batches.schema import Receipt
from magi2.delivery.names import ENDING, companion, with_suffix
from magi2.delivery.places import Place
from magi2.delivery.subtitles import webvtt
from magi2.delivery.targets import Targets
from magi2.errors import InputError, Magi2Error
from magi2.files import disk_errors
from magi2.prompts.caption import Caption
from magi2.recipes.captions import fetch_or_condemn
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, Delivery, StageName

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parcel:
    """What goes to a target: local files by what follows the clip's stem, in the order in which they are put."""

    files: Mapping[str, Path]
    digests: Mapping[str, str]

    @classmethod
    def of(cls, files: Mapping[str, Path]) -> Parcel:
        """The parcel of these files, each read once."""
        return cls(files, {ending: sha256_file(path) for ending, path in files.items()})

    def names(self, name: str) -> dict[str, str]:
        """What the files are called beside a clip of this name, by their endings."""
        return {ending: companion(name, ending) for ending in self.files}


class ClipDelivery:
    """Brings clips of one batch to the deployment's targets. `scratch` is a folder for files that are made for it."""

    def __init__(self, store: ArtifactStore, batch_id: str, targets: Targets, scratch: Path) -> None:
        self._store = store
        self._batch_id = batch_id
        self._targets = targets
        self._scratch = scratch

    def deliver(self, clip: Clip, key: str, caption: Caption | None) -> bool:
        """Bring the clip, stored under `key`, wherever it is to go; whether anything was not there yet.

        Raises: CorruptedArtifactError for a damaged stored file; InputError when all names are taken by other files or
        something is in the way; ConfigError for a target that cannot be used; InfrastructureError for one that is away
        or full.
        """
        known = load_receipts(self._store, self._batch_id, clip.clip_id)
        is_new = False
        for delivery in clip.deliveries:
            with _at(delivery.target):
                place = self._targets.open(delivery.target)
            mine = next((each for each in known if _is_of(each, delivery, key)), None)
            with _at(delivery.target):
                is_there = mine is not None and all(place.digest(n) == sha for n, sha in mine.files.items())
            if mine is None or not is_there:
                is_new |= self._bring(clip, delivery, place, key, caption)
            elif mine.delivered_at is None:
                self._save(clip, mine, datetime.now(UTC))
        return is_new

    def _bring(self, clip: Clip, delivery: Delivery, place: Place, key: str, caption: Caption | None) -> bool:
        stored = fetch_or_condemn(self._store, StageName.MUX, key, CLIP)
        parcel = Parcel.of(self._files(clip, key, stored, caption))
        for name in (delivery.name, with_suffix(delivery.name, clip)):
            names = parcel.names(name)
            receipt = Receipt(
                target=delivery.target,
                wanted=delivery.name,
                name=name,
                key=key,
                files={names[ending]: digest for ending, digest in parcel.digests.items()},
                stored_sha256=sha256_file(stored),
                sha256=parcel.digests[ENDING],
            )
            with _at(delivery.target):
                if not _is_free(place, receipt):
                    continue
                self._save(clip, receipt, None)
                is_new = _put(place, parcel, names)
            if is_new is not None:
                self._save(clip, receipt, datetime.now(UTC))
                logger.info("clip %s is at target %s as %s", clip.short_id, delivery.target, name)
                return is_new
        raise InputError(
            f"target {delivery.target}: other files have the names {delivery.name} and {name}",
            hint="remove one of them, or choose another delivery name",
        )

    def _files(self, clip: Clip, key: str, stored: Path, caption: Caption | None) -> dict[str, Path]:
        """The local files that are delivered, by what follows the clip's stem."""
        files = {
            ".jpg": fetch_or_condemn(self._store, StageName.MUX, key, POSTER),
            ".contact_sheet.jpg": fetch_or_condemn(self._store, StageName.MUX, key, CONTACT_SHEET),
        }
        if caption is not None and (text := webvtt(caption.data)) is not None:
            files[".vtt"] = self._scratch / f"{clip.clip_id}.vtt"
            with disk_errors(files[".vtt"]):
                files[".vtt"].write_text(text, encoding="utf-8")
        return files | {ENDING: stored}

    def _save(self, clip: Clip, receipt: Receipt, moment: datetime | None) -> None:
        saved = receipt.model_copy(update={"delivered_at": moment})
        save_receipt(self._store, self._batch_id, clip.clip_id, saved)


def _is_of(receipt: Receipt, delivery: Delivery, key: str) -> bool:
    return (receipt.target, receipt.wanted, receipt.key) == (delivery.target, delivery.name, key)


def _is_free(place: Place, receipt: Receipt) -> bool:
    """Whether none of the names is taken by another file."""
    return all(place.digest(name) in (None, digest) for name, digest in receipt.files.items())


def _put(place: Place, parcel: Parcel, names: Mapping[str, str]) -> bool | None:
    """Put what is not there yet, and say whether that was anything; None when another file came in between."""
    is_new = False
    for ending, path in parcel.files.items():
        if place.put(path, names[ending]):
            is_new = True
        elif place.digest(names[ending]) != parcel.digests[ending]:
            return None
    return is_new


@contextmanager
def _at(target: str) -> Iterator[None]:
    """Name the target in an error of its own."""
    try:
        yield
    except Magi2Error as error:
        raise type(error)(f"target {target}: {error.args[0]}", hint=error.hint) from error
