"""What the MAGI2_* settings describe, as one object: store, catalog, weights, price; torch-free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore, Known
from magi2.catalog import Catalog, catalog_url, open_catalog
from magi2.catalog.engine import is_made
from magi2.catalog.identity import find_mismatch, require_match, stored_identity
from magi2.catalog.lock import run_locks
from magi2.catalog.whereabouts import rendered_in
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2.errors import IdentityError, Magi2Error
from magi2.types import Clip

if TYPE_CHECKING:
    from magi2.config.profile import Profile
    from magi2.quality.thresholds import Thresholds
    from magi2.recipes.book import RecipeBook

logger = logging.getLogger(__name__)


class Deployment:
    """Settings and everything that they name, each opened when first asked for, and once."""

    def __init__(self, settings: Settings, *, store_identity: str | None = None) -> None:
        self.settings = settings
        self.store_identity = store_identity
        """What the store was known by when `is_store_there` was last asked, or when another process was."""

    @classmethod
    def from_environment(cls) -> Self:
        """The deployment that MAGI2_* describe. Raises: ConfigError for a variable that is wrong."""
        return cls(Settings.from_environment())

    @cached_property
    def store(self) -> ArtifactStore:
        """The store, for whoever only reads: nobody has asked whether it is the catalog's."""
        return open_store(self.settings.store, lock=run_locks(self.settings))

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog. Raises: ConfigError or InfrastructureError when it cannot be opened."""
        return open_catalog(catalog_url(self.settings))

    @cached_property
    def weights(self) -> CheckpointFolder:
        """The checkpoint's folder. Raises: ConfigError when MAGI2_CKPT_ROOT is not set."""
        return CheckpointFolder(self.settings.checkpoint_root())

    @property
    def price(self) -> Price | None:
        """What an hour of an accelerator costs, if that is known."""
        return Price.of(self.settings)

    @cached_property
    def thresholds(self) -> Thresholds:
        """What counts as a defect. Raises: ConfigError for a file of thresholds that is wrong."""
        from magi2.quality.thresholds import load_thresholds

        return load_thresholds(self.settings.quality)

    def recipe_book(self, profile: Profile) -> RecipeBook:
        """The profile's recipes on these weights and this endpoint. Raises: ConfigError, CheckpointError."""
        from magi2.recipes.load import recipe_book

        return recipe_book(profile, self.settings, self.weights)

    def told(self, clips: Sequence[Clip]) -> Callable[[str], Known]:
        """What results of earlier batches say of clips, as far as the catalog knows where they were rendered."""
        from magi2.batches.told import told_to

        return told_to(self.store, self._rendered_in(clips))

    def _rendered_in(self, clips: Sequence[Clip]) -> Iterator[tuple[str, int]]:
        try:
            if is_made(catalog_url(self.settings)):
                yield from rendered_in(self.catalog, clips)
        except Magi2Error as error:
            logger.warning("the store is asked for each artifact: %s", error)

    def require_match(self, *, dry_run: bool = False) -> None:
        """Return if store and catalog are of one identity: for whoever changes the catalog or removes from the store.

        A dry run gives neither an identity, but is refused where the run would be.
        Raises: IdentityError when they do not belong together, ConfigError, InfrastructureError.
        """
        require_match(self.store, self.catalog, dry_run=dry_run)

    def store_to_render(self, *, dry_run: bool = False) -> ArtifactStore:
        """The store, known to be the catalog's: for whoever adds to it.

        A catalog that cannot be opened keeps nobody from rendering, and a log line says that it was not asked. A dry
        run makes nothing, as with `require_match`.
        Raises: IdentityError when the store is not the catalog's, InfrastructureError when it does not answer.
        """
        try:
            if dry_run and not is_made(catalog_url(self.settings)):
                return self.store  # a catalog that is not there knows of no other store
            catalog = self.catalog
        except Magi2Error as error:
            logger.warning("store %s is used without asking whether it is the catalog's: %s", self.store.url, error)
            return self.store
        require_match(self.store, catalog, dry_run=dry_run)
        return self.store

    def is_store_there(self) -> bool:
        """Whether the store has the identity that it had when this was last asked; not so a folder that was unmounted.

        Raises: IdentityError when it has another one, InfrastructureError when it does not answer.
        """
        found, known = stored_identity(self.store), self.store_identity
        if known is not None and found not in (None, known):
            raise IdentityError(f"store {self.store.url}: was replaced by another in the midst of the work")
        self.store_identity = found or known
        return self.store_identity == found

    def mismatch(self) -> str | None:
        """One line for whoever only reads, when the store does not seem to be the catalog's or cannot be asked."""
        try:
            found = find_mismatch(self.store, self.catalog)
        except IdentityError as error:
            return str(error)
        except Magi2Error as error:
            return f"nobody knows whether store and catalog belong together: {error}"
        return found and f"{found}; what is shown may be wrong ({IdentityError.hint})"
