"""Clips where they belong: targets, safe names, signatures, and the record of how each was made; torch-free."""
