"""What is said of a picture file that is not whole."""

from __future__ import annotations


class DamageError(ValueError):
    """A file is not what its format says of it; the message is the reason alone, and quotes nothing of the file."""
