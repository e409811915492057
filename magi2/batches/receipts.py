"""Where clips of a batch were brought, in the store."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import FOLDER, delivery_name, find_document, is_delivery_name, write_document
from magi2.batches.schema import DeliveryDocument, Receipt
from magi2.types import Clip, Delivery


def load_receipts(store: ArtifactStore, batch_id: str, clip_id: str) -> tuple[Receipt, ...]:
    """What is known of a clip's deliveries; nothing of one that was never begun. Raises as `find_document` does."""
    document = find_document(store, delivery_name(batch_id, clip_id), DeliveryDocument)
    return document.receipts if document else ()


def batches_that_delivered(store: ArtifactStore) -> dict[str, list[str]]:
    """The batches that brought a clip anywhere or began to, by clip id: all of the store's, in one listing."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in store.list_documents(FOLDER):
        if is_delivery_name(name):
            _, batch_id, _, file = name.split("/")
            found[file.removesuffix(".json")].append(batch_id)
    return found


def save_receipt(store: ArtifactStore, batch_id: str, clip_id: str, receipt: Receipt) -> None:
    """Write down a delivery of a clip, in place of what was known of the same one."""
    place = receipt.target, receipt.wanted
    others = (each for each in load_receipts(store, batch_id, clip_id) if (each.target, each.wanted) != place)
    document = DeliveryDocument(batch_id=batch_id, clip_id=clip_id, receipts=(*others, receipt))
    write_document(store, delivery_name(batch_id, clip_id), document)


def final_places(store: ArtifactStore, batch_id: str, clip: Clip) -> tuple[Delivery, ...]:
    """Where a clip is brought, under the names that it has there as far as it is there; no store is asked otherwise."""
    receipts = load_receipts(store, batch_id, clip.clip_id) if clip.deliveries else ()
    names = {(each.target, each.wanted): each.name for each in receipts if each.delivered_at}
    return tuple(replace(each, name=names.get((each.target, each.name), each.name)) for each in clip.deliveries)
