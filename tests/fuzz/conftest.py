"""The settings of `make fuzz`; without them hypothesis tries a hundred of each."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fuzz", max_examples=10_000, deadline=None)
