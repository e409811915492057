"""From a batch file, or an earlier batch, to a plan with a deployment's profiles, weights and store; torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import make_batch, read_rows
from magi2.batches.documents import load_batch
from magi2.batches.inline_rows import INLINE_NAME, INLINE_SOURCE, InlineRows
from magi2.batches.input_roots import user_roots
from magi2.batches.placing import Placing
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch
from magi2.batches.rerun import rerun_batch
from magi2.batches.spread import NO_SPREAD, Spread
from magi2.batches.static_checks import ClipCheck, Site, check_profiles
from magi2.batches.told import Told, nothing_told
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.price import price_for_budget
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.delivery.credentials import check_signing
from magi2.delivery.targets import Targets
from magi2.errors import InputError
from magi2.inputs.files import InputRoots, folder_of
from magi2.inputs.limits import MAX_NAME_CHARS
from magi2.inputs.objects import Location, ObjectAddress, is_address
from magi2.inputs.readable import readable_line
from magi2.inputs.text import shown
from magi2.recipes.book import RecipeBook
from magi2.recipes.load import recipe_book


def plan_location(
    location: str | InlineRows,
    *,
    settings: Settings,
    store: ArtifactStore,
    profile: str,
    overrides: Sequence[str] = (),
    images: str | None = None,
    name: str | None = None,
    roots: InputRoots | None = None,
    options: BatchOptions,
    origin: Mapping[str, str | None] | None = None,
    spread: Spread = NO_SPREAD,
    told: Told = nothing_told,
) -> BatchPlan:
    """The plan of the batch file at `location`, a path or a file:// or s3:// address, or of rows that came without
    one; nothing is written.

    `profile` is for rows that name none, `overrides` (`dotted.key=value`) change every profile, `spread` is for rows
    that say nothing of it. Relative paths in the file start at `images`, by default at the file's own folder. `name` is
    what the batch is called, by default as the file.
    Somebody who may start runs on this machine, but not read its files, is given `roots`: the file, `images` and what
    the rows name lie in them, and profiles and negative prompts are names. The user of this machine needs none: rows
    name what lies in the file's folder, in `images`, or in a bucket's prefix of the deployment.
    Raises: InputError for a file or rows that cannot be rendered, ConfigError, CheckpointError, and what
    `check_signing` does where clips are to be signed.
    """
    place = None if isinstance(location, InlineRows) else location_of(location)
    weights = CheckpointFolder(settings.checkpoint_root())
    profiles = Profiles(settings.configs, profile, overrides, names_only=roots is not None)
    own_folder = folder_of(place) if place else None
    folder = _folder(images) if images else own_folder
    roots = roots or user_roots(settings, *(each for each in (own_folder, folder) if each))
    if images and folder:
        roots.require_folder(folder)
    books: dict[str, RecipeBook] = {}

    def with_book(resolved: Profile) -> Profile:
        if (digest := resolved.digest()) not in books:
            books[digest] = recipe_book(resolved, settings, weights)
        return resolved

    @cache
    def profile_of(name: str | None) -> Profile:
        return with_book(profiles(name))

    def derive(named: Profile, changes: Mapping[str, Any]) -> Profile:
        return with_book(profiles.derive(named, changes))

    _check_price(settings, options)
    check_signing(settings)
    name = batch_title(name, place)
    placing = batch_placing(name, settings, options)
    default = profile_of(None)  # a wrong default or override is nobody's row
    if where := options.delivery_target or default.delivery.target:
        placing.require(where)
    site = Site(settings, weights)
    check = ClipCheck(site, lambda digest: books[digest].profile)
    batch = make_batch(
        location.read() if isinstance(location, InlineRows) else read_rows(location_of(location), roots),
        profile_of,
        folder=folder,
        roots=roots,
        placing=placing,
        check=check,
        spread=spread,
        derive=derive,
    )
    profiles.require_all_applied(batch.used_profiles.values())
    check_profiles(batch.used_profiles.values(), batch.clips, site)
    return plan_batch(
        batch,
        name=name,
        source=INLINE_SOURCE if isinstance(location, InlineRows) else location,
        store=store,
        book_of=books.__getitem__,
        options=options,
        origin=origin,
        told=told,
    )


def plan_rerun(
    batch_id: str,
    *,
    settings: Settings,
    store: ArtifactStore,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    options: BatchOptions,
    origin: Mapping[str, str | None] | None = None,
    scratch: Path,
    told: Told = nothing_told,
) -> BatchPlan:
    """The plan of an earlier batch under changed profiles, see `rerun_batch`; nothing is written but its images."""
    _check_price(settings, options)
    check_signing(settings)
    earlier = load_batch(store, batch_id)
    weights = CheckpointFolder(settings.checkpoint_root())
    placing = batch_placing(earlier.name, settings, options)
    batch, profiles = rerun_batch(store, batch_id, only=only, overrides=overrides, scratch=scratch, placing=placing)
    books = {digest: recipe_book(profile, settings, weights) for digest, profile in profiles.items()}
    check_profiles(profiles.values(), batch.clips, Site(settings, weights))
    return plan_batch(
        batch,
        name=earlier.name,
        source=earlier.source,
        store=store,
        book_of=books.__getitem__,
        options=options,
        origin={**(origin or {}), "parent_batch_id": batch_id},
        told=told,
    )


def batch_placing(name: str, settings: Settings, options: BatchOptions) -> Placing:
    """Where the clips of a batch of this name are brought. Raises ConfigError for targets that are none."""
    target, template = options.delivery_target, options.delivery_name
    return Placing(batch=name, target=target, name=template, require=Targets.of(settings).require)


def batch_title(name: str | None, place: Location | None) -> str:
    """What a batch is called. Raises InputError for a name that is too long or shows nothing."""
    if not name:
        return place.stem if place else INLINE_NAME
    if len(name) > MAX_NAME_CHARS:
        raise InputError(f"the name of the batch has {len(name)} characters, at most {MAX_NAME_CHARS}")
    return readable_line(name, "the name of the batch")


def _check_price(settings: Settings, options: BatchOptions) -> None:
    if options.budget is not None:
        price_for_budget(settings)


def _folder(text: str) -> Location:
    found = location_of(text)
    if isinstance(found, Path) or found.key.endswith("/") or not found.key:
        return found
    return ObjectAddress(found.bucket, f"{found.key}/")


def location_of(text: str) -> Location:
    """Where a file is by its path or address. Raises InputError for an address elsewhere."""
    if is_address(text):
        return ObjectAddress.of(text)
    if "://" not in text:
        return Path(text)
    try:
        parts = urlsplit(text)
    except ValueError:  # square brackets without an address in them
        parts = None
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise InputError(
            f"{shown(text)}: not a file of this host or an object",
            hint="give a path, file:///folder/batch.jsonl or s3://bucket/prefix/batch.jsonl",
        )
    return Path(unquote(parts.path))
