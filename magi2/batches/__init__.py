"""Batches: from a file to a plan, its documents in the store, and again; torch-free and database-free."""
