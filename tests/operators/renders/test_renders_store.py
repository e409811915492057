"""Pages say that the store is not the catalog's, and actions wait until it is."""

from __future__ import annotations

import pytest

from magi2.artifacts.local import LocalStore
from magi2.catalog.identity import DOCUMENT, FOREIGN, require_match
from magi2.catalog.rebuild import rebuild
from magi2.errors import IdentityError, InfrastructureError
from magi2_airflow.renders.store_check import FRESH_S, StoreCheck
from tests.operators.renders.renders_site import BATCH, Site, client


@pytest.fixture
def joined(own_site: Site) -> Site:
    """Whose store and catalog carry one identity."""
    require_match(own_site.deployment.store, own_site.catalog)
    return own_site


def give_other_identity(site: Site) -> None:
    site.deployment.store.put_document(DOCUMENT, b'{"identity": "%s"}' % (b"f" * 32))


def test_nothing_is_said_of_a_store_that_is_right(joined: Site) -> None:
    assert client().get("/api/store").json() == {"problem": None}
    assert FOREIGN not in client().get("/").text


def test_every_page_says_that_the_store_is_foreign(joined: Site) -> None:
    give_other_identity(joined)
    assert client().get("/api/store").json() == {"problem": FOREIGN}
    for path in ("/", f"/batches/{BATCH}", f"/batches/{BATCH}/clips/{joined.id('fox')}"):
        assert FOREIGN in client().get(path).text


def test_pages_say_that_the_store_went_away_and_why_the_catalog_was_left_as_it_was(joined: Site) -> None:
    store = joined.deployment.store
    assert isinstance(store, LocalStore)
    aside = store.root.with_name("unmounted")
    store.root.rename(aside)
    assert client().get("/api/store").json() == {"problem": "the store is empty and the catalog is not"}
    with pytest.raises(IdentityError):
        rebuild(store, joined.catalog)
    aside.rename(store.root)
    problem = StoreCheck(store, joined.catalog).problem()
    assert problem is not None and "misses 4 of the 4 delivered clips" in problem
    assert str(store.root) not in problem


@pytest.mark.parametrize("action", ["pause", "resume", "priority", "budget", "cancel", "rerun"])
def test_action_on_the_catalog_of_another_store_is_refused(joined: Site, action: str) -> None:
    give_other_identity(joined)
    body = {"priority": 1} if action == "priority" else {"budget": 1.0} if action == "budget" else {}
    answer = client("user").post(f"/api/batches/{BATCH}/{action}", json=body)
    assert (answer.status_code, answer.json()["detail"].partition(";")[0]) == (409, FOREIGN)
    assert joined.catalog.control.actions(BATCH).total == 0


def test_batch_can_be_paused_while_the_store_does_not_answer(joined: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LocalStore, name: str) -> bytes | None:
        raise InfrastructureError("the server is away")

    monkeypatch.setattr(LocalStore, "get_document", fail)
    assert client("user").post(f"/api/batches/{BATCH}/pause", json={}).status_code == 200
    problem = client().get("/api/store").json()["problem"]
    assert problem == "the store cannot be asked whether it is the catalog's (infrastructure)"


def test_store_is_asked_again_after_a_while_only(joined: Site) -> None:
    moments = [0.0]
    check = StoreCheck(joined.deployment.store, joined.catalog, clock=lambda: moments[0])
    assert check.problem() is None
    give_other_identity(joined)
    assert check.problem() is None
    moments[0] = FRESH_S
    assert check.problem() == FOREIGN
