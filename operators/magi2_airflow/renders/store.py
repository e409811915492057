"""What follows for pages when the store is not the catalog's: a warning on each, and no actions."""

from __future__ import annotations

import logging

from fastapi import APIRouter, HTTPException

from magi2.catalog.identity import find_mismatch
from magi2.errors import IdentityError, InfrastructureError
from magi2_airflow.renders.contract import StoreState
from magi2_airflow.renders.deployment import Site

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/api")


@router.get("/store")
def store_state(site: Site) -> StoreState:
    """Whether to trust what is shown."""
    return StoreState(problem=site.store_check.problem())


def right_store(site: Site) -> None:
    """Refuse an action on a catalog whose store is another one; one that does not answer refuses nothing."""
    try:
        mismatch = find_mismatch(site.store, site.catalog)
    except InfrastructureError as error:
        logger.warning("an action is taken without asking the store whether it is the catalog's: %s", error)
        return
    except IdentityError as error:
        logger.error("%s", error)
        mismatch = "the store's identity cannot be read"
    if mismatch:
        raise HTTPException(409, f"{mismatch}; nothing is changed until that is put right")
