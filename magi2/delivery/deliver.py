"""One clip brought to its targets: the stored file and what goes along, create-only, with a receipt in the batch.

The clip's file comes after its pictures and subtitles, so that whoever waits for it finds them, and the sidecar last:
what has one is whole. A deployment that signs delivers a signed copy, which no second signing gives again: so what was
brought before, by this batch or another, is told by its receipt and not by its bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from magi2.artifacts.recipe import sha256_file
from magi2.artifacts.store import ArtifactStore
from magi2.batches.receipts import batches_that_delivered, load_receipts, save_receipt
from magi2.batches.schema import Receipt
from magi2.config.price import Price
from magi2.delivery.credentials import Signer
from magi2.delivery.names import ENDING, companion, with_suffix
from magi2.delivery.places import Place
from magi2.delivery.record import make_sidecar
from magi2.delivery.sidecar import SIDECAR_SUFFIX, FileRecord
from magi2.delivery.subtitles import webvtt
from magi2.delivery.targets import Targets
from magi2.errors import InputError, Magi2Error, MediaError
from magi2.files import disk_errors
from magi2.media.marks.read import read_marks
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import fetch_or_condemn
from magi2.recipes.lookup import StoredClip
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, Delivery, StageName

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parcel:
    """What goes to a target: local files by what follows the clip's stem, in the order in which they are put.

    `clip` are the bytes of the clip's file, also where that is at the target already and not among `files`.
    """

    files: Mapping[str, Path]
    digests: Mapping[str, str]
    clip: FileRecord
    is_signed: bool
    is_marked: bool

    def names(self, name: str) -> dict[str, str]:
        """What the files are called beside a clip of this name, by their endings."""
        return {ending: companion(name, ending) for ending in self.digests}

    def receipt(self, delivery: Delivery, name: str, *, key: str, stored: Path) -> Receipt:
        """The receipt for the parcel under a name, on its way."""
        names = self.names(name)
        return Receipt(
            target=delivery.target,
            wanted=delivery.name,
            name=name,
            key=key,
            files={names[ending]: digest for ending, digest in self.digests.items()},
            stored_sha256=sha256_file(stored),
            sha256=self.clip.sha256,
            size_bytes=self.clip.size_bytes,
            signed=self.is_signed,
            marked=self.is_marked,
        )


class ClipDelivery:
    """Brings clips of one batch and profile to the deployment's targets.

    `book` has the profile's recipes, `signer` signs copies where the deployment asks for it, `price` is for full
    sidecars. `scratch` is a folder for files that are made for it.
    """

    def __init__(
        self,
        store: ArtifactStore,
        batch_id: str,
        targets: Targets,
        scratch: Path,
        *,
        book: RecipeBook,
        signer: Signer | None = None,
        price: Price | None = None,
    ) -> None:
        self._store = store
        self._batch_id = batch_id
        self._targets = targets
        self._scratch = scratch
        self._book = book
        self._signer = signer
        self._price = price

    def deliver(self, clip: Clip, key: str, found: StoredClip) -> bool:
        """Bring the clip, stored under `key`, wherever it is to go; whether anything was not there yet.

        Raises: CorruptedArtifactError for a damaged stored file; InputError when all names are taken by other files or
        something is in the way; ConfigError for a target or certificate that cannot be used; ContractError when the
        caption is lost; InfrastructureError for a target or signing command that is away or full.
        """
        known = load_receipts(self._store, self._batch_id, clip.clip_id)
        is_new = False
        for delivery in clip.deliveries:
            with _at(delivery.target):
                place = self._targets.open(delivery.target)
            mine = next((each for each in known if self._is_of(each, delivery, key)), None)
            with _at(delivery.target):
                is_there = mine is not None and _is_whole(place, mine)
            if mine is None or not is_there:
                is_new |= self._bring(clip, delivery, place, key, found, mine)
            elif mine.delivered_at is None:
                self._save(clip, mine, datetime.now(UTC))
        return is_new

    def _bring(
        self, clip: Clip, delivery: Delivery, place: Place, key: str, found: StoredClip, mine: Receipt | None
    ) -> bool:
        stored = fetch_or_condemn(self._store, StageName.MUX, key, CLIP)
        with _at(delivery.target):
            left = _signed_copy(place, mine)
        parcel = self._parcel(clip, key, found, stored, left)
        names = (mine.name,) if mine and left else (delivery.name, with_suffix(delivery.name, clip))
        for name in names:
            receipt = parcel.receipt(delivery, name, key=key, stored=stored)
            with _at(delivery.target):
                if not _is_free(place, receipt):
                    if earlier := self._brought_before(clip, receipt, place):
                        self._save(clip, earlier, earlier.delivered_at)
                        return False
                    continue
                self._save(clip, receipt, None)
                is_new = _put(place, parcel, parcel.names(name))
            if is_new is not None:
                self._save(clip, receipt, datetime.now(UTC))
                logger.info("clip %s is at target %s as %s", clip.short_id, delivery.target, name)
                return is_new
        raise InputError(
            f"target {delivery.target}: other files have the names {' and '.join(names)}",
            hint="remove one of them, or choose another delivery name",
        )

    def _parcel(self, clip: Clip, key: str, found: StoredClip, stored: Path, left: FileRecord | None) -> Parcel:
        """What is delivered of a clip; nothing is signed again where `left` is at the target."""
        files = self._companions(clip, key, found)
        digests = {ending: sha256_file(path) for ending, path in files.items()}
        delivered = left or self._delivered(stored)
        if left is None:
            files[ENDING] = self._signed if self._signer else stored
        digests[ENDING] = delivered.sha256
        signed = self._signer is not None
        sidecar = make_sidecar(clip, self._book, found, delivered=delivered, signed=signed, price=self._price)
        files[SIDECAR_SUFFIX] = self._write(clip, SIDECAR_SUFFIX, sidecar.to_bytes())
        digests[SIDECAR_SUFFIX] = sha256_file(files[SIDECAR_SUFFIX])
        return Parcel(files, digests, delivered, signed, _is_marked(stored))

    @property
    def _signed(self) -> Path:
        return self._scratch / "signed.mp4"

    def _delivered(self, stored: Path) -> FileRecord:
        """The bytes to deliver: the stored ones, or those of a copy that is signed now."""
        if self._signer:
            self._signer.sign(stored, self._signed)
        path = self._signed if self._signer else stored
        return FileRecord(sha256=sha256_file(path), size_bytes=path.stat().st_size)

    def _companions(self, clip: Clip, key: str, found: StoredClip) -> dict[str, Path]:
        """Pictures and subtitles, by what follows the clip's stem."""
        files = {
            ".jpg": fetch_or_condemn(self._store, StageName.MUX, key, POSTER),
            ".contact_sheet.jpg": fetch_or_condemn(self._store, StageName.MUX, key, CONTACT_SHEET),
        }
        if found.caption is not None and (text := webvtt(found.caption.data)) is not None:
            files[".vtt"] = self._write(clip, ".vtt", text.encode())
        return files

    def _write(self, clip: Clip, ending: str, content: bytes) -> Path:
        path = self._scratch / f"{clip.clip_id}{ending}"
        with disk_errors(path):
            path.write_bytes(content)
        return path

    def _brought_before(self, clip: Clip, receipt: Receipt, place: Place) -> Receipt | None:
        """The receipt of another batch that brought the same stored clip under this name, and whose files are there."""
        batches = self._batches.get(clip.clip_id, ())
        for each in (each for batch in batches for each in load_receipts(self._store, batch, clip.clip_id)):
            same = (each.target, each.name, each.key, each.signed)
            wanted = (receipt.target, receipt.name, receipt.key, receipt.signed)
            if same == wanted and each.delivered_at and _is_whole(place, each):
                return each.model_copy(update={"wanted": receipt.wanted})
        return None

    @cached_property
    def _batches(self) -> Mapping[str, list[str]]:
        return batches_that_delivered(self._store)

    def _is_of(self, receipt: Receipt, delivery: Delivery, key: str) -> bool:
        same = (receipt.target, receipt.wanted, receipt.key) == (delivery.target, delivery.name, key)
        return same and receipt.signed == (self._signer is not None)

    def _save(self, clip: Clip, receipt: Receipt, moment: datetime | None) -> None:
        saved = receipt.model_copy(update={"delivered_at": moment})
        save_receipt(self._store, self._batch_id, clip.clip_id, saved)


def _is_whole(place: Place, receipt: Receipt) -> bool:
    """Whether all files of a delivery are at the target as they were brought."""
    return all(place.digest(name) == digest for name, digest in receipt.files.items())


def _signed_copy(place: Place, mine: Receipt | None) -> FileRecord | None:
    """The signed clip that an attempt left at the target when it was ended before its sidecar."""
    if mine is None or not mine.signed or mine.size_bytes is None or place.digest(mine.name) != mine.sha256:
        return None
    return FileRecord(sha256=mine.sha256, size_bytes=mine.size_bytes)


def _is_marked(path: Path) -> bool:
    """Whether a file says once that it is made by AI; signing leaves that as it is."""
    try:
        return not read_marks(path).problems
    except MediaError:
        return False


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
