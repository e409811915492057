"""The record of how a stored clip was made, from its manifests."""

from __future__ import annotations

from typing import Any

from magi2.artifacts.manifest import MADE_BY, Manifest
from magi2.artifacts.recipe import JSON
from magi2.config.price import Price
from magi2.config.profile import Profile
from magi2.delivery.sidecar import (
    SIDECAR_VERSION,
    CostRecord,
    FileRecord,
    ImageRecord,
    ProfileRecord,
    Sidecar,
    StageRecord,
)
from magi2.errors import ContractError
from magi2.inputs.text import is_name
from magi2.media.delivery import PLACEMENT
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.book import RecipeBook
from magi2.recipes.lookup import StoredClip
from magi2.types import ACCELERATOR_STAGES, CLIP, Clip, StageName

NOT_FROM_FILES = ("watermark",)
"""Keys of a profile's `delivery` that nobody takes from a file: they name code that is run."""


def make_sidecar(
    clip: Clip, book: RecipeBook, found: StoredClip, *, delivered: FileRecord, signed: bool, price: Price | None = None
) -> Sidecar:
    """The record of a finished clip. `delivered` are the bytes beside it.

    With the profile's `delivery.sidecar: full` it says device, layout, host and cost, too.
    Raises: ContractError for a clip whose file or caption is not in the store.
    """
    caption, manifests = found.caption, found.manifests()
    full = book.profile.delivery.sidecar == "full"
    if caption is None or StageName.MUX not in manifests:
        lost = "caption" if caption is None else "file"
        raise ContractError(f"clip {clip.short_id}: its {lost} is not in the store, so nothing can be told of it")
    mux, profile = manifests[StageName.MUX], book.profile
    return Sidecar(
        version=SIDECAR_VERSION,
        clip_id=clip.clip_id,
        prompt=clip.prompt,
        caption=caption.text,
        negative_prompt=book.negative_prompt,
        images=tuple(ImageRecord(figure=figure.number, sha256=figure.sha256) for figure in clip.figures),
        seed=clip.seed,
        profile=ProfileRecord(name=profile.name, digest=profile.digest(), settings=recorded_settings(profile)),
        weights=book.weights(clip, caption.text),
        stages={stage: _stage(manifest, full) for stage, manifest in manifests.items()},
        marking=marking_of(mux.recipe.config),
        stored=FileRecord(sha256=mux.payloads[CLIP].sha256, size_bytes=mux.payloads[CLIP].size_bytes),
        delivered=delivered,
        signed=signed,
        cost=_cost(manifests, price) if full else None,
    )


def recorded_settings(profile: Profile) -> dict[str, Any]:
    """A profile's resolved settings as a sidecar has them."""
    settings = profile.model_dump(mode="json", exclude={"name", "description", "changed"})
    left_out = (*PLACEMENT, *NOT_FROM_FILES)
    settings["delivery"] = {key: value for key, value in settings["delivery"].items() if key not in left_out}
    if not is_name(profile.text.negative_prompt):
        del settings["text"]["negative_prompt"]
    return settings


def marking_of(config: JSON) -> dict[str, Any]:
    """What a mux recipe's settings say of marks."""
    marking = config.get("marking") if isinstance(config, dict) else None
    return dict(marking) if isinstance(marking, dict) else {}


def _stage(manifest: Manifest, full: bool) -> StageRecord:
    report = manifest.report
    made_by = report.get(MADE_BY)
    layout = report.get("layout")
    more = {"device": manifest.device, "layout": layout, "host": manifest.host} if full else {}
    return StageRecord(
        key=manifest.key,
        made_at=manifest.created_at,
        seconds=round(manifest.timings.get("make_s", 0.0), 3),
        program=manifest.code_version,
        made_by={name: str(value) for name, value in made_by.items()} if isinstance(made_by, dict) else {},
        **more,
    )


def _cost(manifests: dict[StageName, Manifest], price: Price | None) -> CostRecord:
    seconds = sum(
        manifests[stage].timings.get("make_s", 0.0) * _ranks(manifests[stage])
        for stage in ACCELERATOR_STAGES
        if stage in manifests
    )
    amount = {"amount": price.cost(seconds), "currency": price.currency} if price else {}
    return CostRecord(accelerator_seconds=round(seconds, 3), **amount)


def _ranks(manifest: Manifest) -> int:
    layout = manifest.report.get("layout")
    return ParallelLayout.parse(layout).num_ranks if isinstance(layout, str) else 1
