"""The reference images that the rows of a batch name: each file is read once a plan, each picture decoded once."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple, TypeVar

from magi2.batches.sources import Sources
from magi2.config.profile import PreviewSettings
from magi2.errors import ImageError
from magi2.inputs.objects import is_address
from magi2.inputs.text import shown
from magi2.media.colours import RGB
from magi2.media.image import NOTES, TAKEN, Mode, Note, load_reference
from magi2.prompts.figures import Figure
from magi2.types import FigureImage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ADDRESS = re.compile(r"(?i)\s*(?:[a-z][a-z0-9+.-]*://|data:|file:|blob:)")


class Wanted(NamedTuple):
    """What `load_reference` needs to know of a clip."""

    height: int
    width: int
    mode: Mode
    background: RGB | None


class References:
    """The pictures of one batch, which come from its `sources` alone."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: dict[Hashable, object] = {}

    def image(self, figure: Figure, preview: PreviewSettings) -> FigureImage:
        """The picture that a row names, fit to be the reference of a clip of these settings.

        Raises: ImageError that begins with what the row says, InfrastructureError when the disk fails.
        """
        what = f"image {shown(figure.source)}"
        wanted = Wanted(preview.height, preview.width, preview.ref_image_type, preview.background)
        path, digest, treatment = self._once((figure.source, wanted), lambda: self._look(figure.source, what, wanted))
        return FigureImage(figure.number, path, digest, treatment)

    def _look(self, source: str, what: str, wanted: Wanted) -> tuple[Path, str, tuple[str, ...]]:
        """Where the picture is, the digest of its content, and what is done to that for it to look as viewers show it.

        The log says what is odd about it.
        """
        if _ADDRESS.match(source) and not (is_address(source) and self._sources.has_buckets):
            raise ImageError(
                f"{what}: is an address, not a file", hint=f"save the picture as a file and name its path; {TAKEN}"
            )
        place, content = self._sources.picture(source, what)
        digest = hashlib.sha256(content).hexdigest()
        try:
            notes, treatment = self._once((digest, wanted), lambda: _decoded(content, wanted))
        except ImageError as error:
            raise ImageError(f"{what}: {error.args[0]}", hint=error.hint) from None
        for note in notes:
            logger.warning("%s %s: its clips are flagged", what, NOTES[note])
        return self._sources.local_file(place, content, digest), digest, treatment

    def _once(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives or raises, as it was when it was first asked for."""
        if key not in self._known:
            try:
                self._known[key] = work()
            except ImageError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, ImageError):
            raise ImageError(found.args[0], hint=found.hint)
        return found  # type: ignore[return-value]  # each key has one type


def _decoded(content: bytes, wanted: Wanted) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """What is odd about a picture, and what is done to it; the pixels are let go."""
    picture = load_reference(content, *wanted)
    return picture.notes, picture.treatment
