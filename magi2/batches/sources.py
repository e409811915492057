"""The files and objects that the rows of a batch name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magi2.errors import ImageError, InputError
from magi2.inputs.files import InputRoots
from magi2.inputs.objects import Location, is_address, location_in
from magi2.inputs.refusals import UnreadableError
from magi2.inputs.text import shown


@dataclass(frozen=True)
class Sources:
    """Where relative paths of rows start, if there is such a folder, and where their files may lie."""

    folder: Location | None
    roots: InputRoots

    @property
    def has_buckets(self) -> bool:
        """Whether rows may name objects at all."""
        return bool(self.roots.prefixes)

    def text(self, source: str, what: str) -> str:
        """The text that a row names. Raises: InputError beginning with `what`, as `InputRoots.read_text` does."""
        try:
            place = location_in(self.folder, source)
        except UnreadableError as error:
            raise InputError(f"{what}: unreadable: {error}") from None
        return self.roots.read_text(place, what, if_absent=self._if_absent(source))

    def picture(self, source: str, what: str) -> tuple[Location, bytes]:
        """Where a picture that a row names is, and its content.

        Raises: ImageError beginning with `what`, as `InputRoots.read_picture` does.
        """
        try:
            place = location_in(self.folder, source)
        except UnreadableError as error:
            raise ImageError(f"{what}: not a readable image: {error}") from None
        return place, self.roots.read_picture(place, what, if_absent=self._if_absent(source))

    def local_file(self, place: Location, content: bytes, sha256: str) -> Path:
        """As `InputRoots` has it."""
        return self.roots.local_file(place, content, sha256)

    def _if_absent(self, source: str) -> str | None:
        """What to look at first when nothing lies where `source` leads."""
        if "\\" in source:
            return "folders are parted by / here, not by \\"
        if is_address(source) or Path(source).is_absolute():
            return None
        return f"relative paths start at {shown(self.folder)}"
