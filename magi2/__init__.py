"""Batch renderer for MAGI-2 Preview: lists of prompts to ten-second clips with sound."""

__version__ = "0.1.0"
