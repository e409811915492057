"""One file per step; the newest is `magi2.catalog.tables.REVISION`."""
