"""Finished clips on their way out: targets, names, signatures, and the record of how each was made; torch-free."""
