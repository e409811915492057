"""From a batch file, or an earlier batch, to a plan with a deployment's profiles, weights and store; torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from magi2.artifacts.address import store_folder
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import make_batch, read_rows
from magi2.batches.documents import load_batch
from magi2.batches.placing import Placing
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch
from magi2.batches.rerun import rerun_batch
from magi2.batches.spread import NO_SPREAD, Spread
from magi2.batches.static_checks import ClipCheck, Site, check_profiles
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.price import price_for_budget
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.delivery.credentials import check_signing
from magi2.delivery.targets import Targets
from magi2.errors import ConfigError, InputError
from magi2.inputs.files import InputRoots, resolved
from magi2.inputs.text import shown
from magi2.recipes.book import RecipeBook
from magi2.recipes.load import recipe_book


def plan_location(
    location: str,
    *,
    settings: Settings,
    store: ArtifactStore,
    profile: str,
    overrides: Sequence[str] = (),
    images: str | None = None,
    roots: InputRoots | None = None,
    options: BatchOptions,
    origin: Mapping[str, str | None] | None = None,
    spread: Spread = NO_SPREAD,
) -> BatchPlan:
    """The plan of the batch file at `location`, a path or a file:// address; nothing is written.

    `profile` is for rows that name none, `overrides` (`dotted.key=value`) change every profile, `spread` is for rows
    that say nothing of it. Relative paths in the file start at `images`, by default at the file's own folder.
    Somebody who may start runs on this machine, but not read its files, is given `roots`: the file, `images` and what
    the rows name lie in them, and profiles and negative prompts are names. The user of this machine needs none: rows
    name what lies in the file's folder or in `images`.
    Raises: InputError for a file or rows that cannot be rendered, ConfigError, CheckpointError, and what
    `check_signing` does where clips are to be signed.
    """
    path = local_path(location)
    weights = CheckpointFolder(settings.checkpoint_root())
    profiles = Profiles(settings.configs, profile, overrides, names_only=roots is not None)
    folder = local_path(images) if images else resolved(path).parent
    roots = roots or InputRoots((resolved(path).parent, folder), closed_folders(settings))
    if images:
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
    placing = batch_placing(path.stem, settings, options)
    default = profile_of(None)  # a wrong default or override is nobody's row
    if where := options.delivery_target or default.delivery.target:
        placing.require(where)
    site = Site(settings, weights)
    check = ClipCheck(site, lambda digest: books[digest].profile)
    batch = make_batch(
        read_rows(path, roots),
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
        name=path.stem,
        source=location,
        store=store,
        book_of=books.__getitem__,
        options=options,
        origin=origin,
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
    )


def batch_placing(name: str, settings: Settings, options: BatchOptions) -> Placing:
    """Where the clips of a batch of this name are brought. Raises ConfigError for targets that are none."""
    target, template = options.delivery_target, options.delivery_name
    return Placing(batch=name, target=target, name=template, require=Targets.of(settings).require)


def deployment_roots(settings: Settings) -> InputRoots:
    """Where runs in Airflow read inputs: the inbox and MAGI2_INPUT_ROOTS.

    Raises: ConfigError when there are none, and for one that is the whole disk, or has to do with the store or
    Airflow's own folder.
    """
    folders = (*((settings.inbox,) if settings.inbox else ()), *settings.input_roots)
    if not folders:
        raise ConfigError(
            "there is no folder for batch files: neither MAGI2_INBOX nor MAGI2_INPUT_ROOTS is set",
            hint="set one of them to a folder for inputs alone",
        )
    return InputRoots(folders, closed_folders(settings)).require_apart()


def closed_folders(settings: Settings) -> dict[str, Path]:
    """Folders from which no input is read, by what they are."""
    store = store_folder(settings.store)
    return {"AIRFLOW_HOME": settings.airflow_home, **({"the store": store} if store else {})}


def _check_price(settings: Settings, options: BatchOptions) -> None:
    if options.budget is not None:
        price_for_budget(settings)


def local_path(location: str) -> Path:
    """The path of a location on this host. Raises InputError for an address elsewhere."""
    if "://" not in location:
        return Path(location)
    try:
        parts = urlsplit(location)
    except ValueError:  # square brackets without an address in them
        parts = None
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise InputError(
            f"{shown(location)}: not a file of this host", hint="give a path or file:///folder/batch.jsonl"
        )
    return Path(unquote(parts.path))
