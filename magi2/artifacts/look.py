"""Looking for many artifacts of a stage at once: by a listing where the store has one that tells sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

from magi2.artifacts.ahead import in_order
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import Known, Look
from magi2.artifacts.survey import Survey
from magi2.errors import CorruptedArtifactError, InfrastructureError

Find: TypeAlias = Callable[[str], Manifest | None]


def each(keys: Iterable[str], find: Find) -> Iterator[Look]:
    """The artifacts of these keys that are there, in this order, each asked for."""
    return (found for found in in_order(lambda key: _looked(key, find), keys) if found is not None)


def by_survey(survey: Survey, known: Known, *, read: Find, find: Find) -> Iterator[Look]:
    """The artifacts that a survey has: first those whose manifest is known, then the others in order of their keys.

    `read` gives an artifact's manifest, `find` looks at all of it: at what `read` and the survey do not agree on.
    """
    for key, text in known:
        manifest = survey.accepted(key, text)
        if manifest is not None:
            survey.forget(key)
            yield Look(key, manifest)

    def whole(key: str) -> Manifest | None:
        with suppress(CorruptedArtifactError):
            manifest = read(key)
            if manifest is not None and survey.is_whole(manifest):
                return manifest
        return find(key)

    yield from each(survey, whole)


def _looked(key: str, find: Find) -> Look | None:
    try:
        manifest = find(key)
    except (CorruptedArtifactError, InfrastructureError) as error:
        return Look(key, None, error)
    return None if manifest is None else Look(key, manifest)
