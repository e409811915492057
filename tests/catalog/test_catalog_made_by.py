"""Which artifacts another set of libraries and programs has made."""

from __future__ import annotations

from pathlib import Path

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import MADE_BY
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.verify import made_by_others
from tests.catalog.catalog_samples import publish

HERE = {"torch": "2.13.0", "ffmpeg": "9.0.2"}


def test_other_and_unknown_sets_are_listed_and_ours_is_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    publish(store, seed=1, report={MADE_BY: {**HERE, "kernels": "none"}})
    older = publish(store, seed=2, report={MADE_BY: {**HERE, "ffmpeg": "5.1.9"}})
    unknown = publish(store, seed=3)
    catalog: Catalog = open_catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    assert dict(made_by_others(store, catalog, HERE)) == {
        f"mux/{older.key}": "ffmpeg: 5.1.9",
        f"mux/{unknown.key}": "its manifest names no set",
    }
