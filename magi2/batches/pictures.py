"""The reference images that the rows of a batch name: each file is read once a plan, each picture decoded once."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple, TypeVar

from magi2.config.profile import PreviewSettings
from magi2.errors import ImageError
from magi2.inputs.files import InputRoots, UnreadableError
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
    """The pictures of one batch. Relative paths start at `folder`; files are read from `roots` alone."""

    def __init__(self, folder: Path, roots: InputRoots) -> None:
        self._folder = folder
        self._roots = roots
        self._known: dict[Hashable, object] = {}

    def image(self, figure: Figure, preview: PreviewSettings) -> FigureImage:
        """The picture that a row names, fit to be the reference of a clip of these settings.

        Raises: ImageError that begins with what the row says, InfrastructureError when the disk fails.
        """
        what = f"image {shown(figure.source)}"
        wanted = Wanted(preview.height, preview.width, preview.ref_image_type, preview.background)
        path, digest, treatment = self._once((figure.source, wanted), lambda: self._look(figure.source, what, wanted))
        return FigureImage(figure.number, path, digest, treatment)

    def _find(self, source: str, what: str) -> Path:
        if _ADDRESS.match(source):
            raise ImageError(
                f"{what}: is an address, not a file", hint=f"save the picture as a file and name its path; {TAKEN}"
            )
        try:
            return self._roots.find(self._folder / source)
        except UnreadableError:
            return self._folder / source  # reading it says why

    def _look(self, source: str, what: str, wanted: Wanted) -> tuple[Path, str, tuple[str, ...]]:
        """Where the picture is, the digest of its content, and what is done to that for it to look as viewers show it.

        The log says what is odd about it.
        """
        path = self._find(source, what)
        content = self._roots.read_picture(path, what, if_absent=self._if_absent(source))
        digest = hashlib.sha256(content).hexdigest()
        try:
            notes, treatment = self._once((digest, wanted), lambda: _decoded(content, wanted))
        except ImageError as error:
            raise ImageError(f"{what}: {error.args[0]}", hint=error.hint) from None
        for note in notes:
            logger.warning("%s %s: its clips are flagged", what, NOTES[note])
        return path, digest, treatment

    def _if_absent(self, source: str) -> str | None:
        """What to look at first when nothing lies where `source` leads."""
        if "\\" in source:
            return "folders are parted by / here, not by \\"
        return None if Path(source).is_absolute() else f"relative paths start at {shown(self._folder)}"

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
