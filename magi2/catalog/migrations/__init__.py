"""Alembic's steps from one version of the catalog's tables to the next."""
