"""Opening the files that a batch names, without letting it read what was not meant for it.

Paths in a batch are somebody else's words: they may lead through links and `..`, to another user's files, to secrets in
/proc, to devices that never end. So a file is opened from listed folders only. It is opened once, and everything that
is asked of it is asked of the open file, which nobody can exchange any more. Objects come from listed prefixes alone.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from magi2.errors import ConfigError, ImageError, InfrastructureError, InputError
from magi2.files import disk_errors, is_the_machines, partial_file
from magi2.inputs.encoding import SAVE_AS_UTF8, decode
from magi2.inputs.limits import MAX_PICTURE_BYTES, MAX_TEXT_BYTES
from magi2.inputs.objects import Location, ObjectAddress, ObjectPrefix, check_key
from magi2.inputs.refusals import AbsentError, UnreadableError
from magi2.inputs.text import shown

SYSTEM_FOLDERS = (Path("/proc"), Path("/sys"), Path("/dev"))
_SPECIAL_FILES = {errno.ENXIO, errno.ENODEV}
"""What opening a socket, or a device that is not there, ends in."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY  # a FIFO without a writer returns


@dataclass(frozen=True)
class InputRoots:
    """Folders from which inputs are read, and `closed` folders, by what they are, from which they never are.

    Relative folders start at the working folder, links are followed. `prefixes` are those of buckets, of which nothing
    is closed. Pictures from there are kept in the folder `kept` until it goes, by default with this process.
    Raises: ConfigError when a folder is the root of the file system or the system's own.
    """

    folders: tuple[Path, ...]
    closed: Mapping[str, Path] = field(default_factory=dict)
    prefixes: tuple[ObjectPrefix, ...] = ()
    kept: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "folders", tuple(dict.fromkeys(map(resolved, self.folders))))
        object.__setattr__(self, "closed", {what: resolved(folder) for what, folder in self.closed.items()})
        for folder in self.folders:
            if folder == Path(folder.anchor) or any(folder.is_relative_to(system) for system in SYSTEM_FOLDERS):
                raise ConfigError(
                    f"inputs are not read from {shown(folder)}: it holds the system's own files",
                    hint="give a folder for inputs alone",
                )

    @classmethod
    def around(cls, *files: Location) -> InputRoots:
        """The folders of files that the user of this machine names himself, after links are followed."""
        return cls(tuple(resolved(file).parent for file in files if isinstance(file, Path)))

    def require_apart(self) -> InputRoots:
        """These roots. Raises ConfigError when a root and a closed folder lie one in the other."""
        for folder in self.folders:
            for what, closed in self.closed.items():
                if folder.is_relative_to(closed) or closed.is_relative_to(folder):
                    raise ConfigError(
                        f"inputs are not read from {shown(folder)}: {what} is {shown(closed)}",
                        hint="give a folder for inputs alone, beside it",
                    )
        return self

    def require_folder(self, folder: Location) -> None:
        """Raises InputError when `folder` lies outside the roots."""
        try:
            self._prefix_of(folder) if isinstance(folder, ObjectAddress) else self._check_place(resolved(folder))
        except UnreadableError as error:
            raise InputError(f"folder {shown(folder)}: {error}") from None

    def read_text(
        self,
        path: Location,
        what: str,
        limit: int = MAX_TEXT_BYTES,
        *,
        if_absent: str | None = None,
        in_rows: bool = False,
    ) -> str:
        """A text file as `text_of` has it. Raises: as `read_content` and that do."""
        return text_of(self.read_content(path, what, limit, if_absent=if_absent), what, in_rows=in_rows)

    def read_content(self, path: Location, what: str, limit: int, *, if_absent: str | None = None) -> bytes:
        """The bytes of a file.

        Raises: InputError beginning with `what` when it is not in the roots, no regular file, larger than `limit` or
        absent, which has the hint `if_absent`; what `read` does when disk or server fail.
        """
        try:
            return self.read(path, limit)
        except UnreadableError as error:
            hint = if_absent if isinstance(error, AbsentError) else None
            raise InputError(f"{what}: unreadable: {error}", hint=hint) from None

    def read_picture(self, path: Location, what: str, *, if_absent: str | None = None) -> bytes:
        """The content of a picture file, of at most `MAX_PICTURE_BYTES`.

        Raises ImageError beginning with `what`; when it is absent with the hint `if_absent`.
        """
        try:
            return self.read(path, MAX_PICTURE_BYTES)
        except AbsentError:
            raise ImageError(f"{what}: no such image", hint=if_absent) from None
        except UnreadableError as error:
            raise ImageError(f"{what}: not a readable image: {error}") from None

    def local_file(self, path: Location, content: bytes, sha256: str) -> Path:
        """Where a picture of this content lies on this host: where it was found, or a copy of an object.

        Raises: InfrastructureError when the disk fails.
        """
        if isinstance(path, Path):
            return self.find(path)
        target = (self.kept or _process_folder()) / f"{sha256}{path.suffix}"
        with disk_errors(target):
            if not target.exists():
                with partial_file(target) as partial:
                    partial.write_bytes(content)
        return target

    def find(self, path: Path) -> Path:
        """The path, or where it leads if its letters with accents are composed as those of the file's name are.

        Systems differ in that, so a list from one may name files that another has unpacked.
        """
        place = resolved(path)
        self._check_place(place)
        if os.path.lexists(place) or str(place).isascii():
            return path
        found = Path(place.anchor)
        for part in place.parts[1:]:
            found = found / part if os.path.lexists(found / part) else _alike(found, part)
        return found if os.path.lexists(found) else path

    def read(self, path: Location, limit: int) -> bytes:
        """The content of an object, or of a regular file, of at most `limit` bytes that lies in the roots after links
        are followed.

        Raises: UnreadableError with the reason; what lies outside is refused alike whether it is there or not.
        InfrastructureError when the disk or its server fails, SourceError when it refuses the deployment: those are
        nobody's file.
        """
        if isinstance(path, ObjectAddress):
            prefix = self._prefix_of(path)
            check_key(path.key)
            return prefix.read(path.key, limit)
        place = resolved(self.find(path))
        self._check_place(place)
        with _opened(place) as handle:
            _check_kind(os.fstat(handle), limit)
            self._check_place(Path(os.readlink(f"/proc/self/fd/{handle}")))
            with os.fdopen(handle, "rb", closefd=False) as stream:
                content = stream.read(limit + 1)  # a file may grow while it is read
        if len(content) > limit:
            raise UnreadableError(f"has more than {limit} bytes")
        return content

    def _prefix_of(self, address: ObjectAddress) -> ObjectPrefix:
        """The longest of the prefixes that an address lies below."""
        if not self.prefixes:
            raise UnreadableError(
                "is not a file of this host", hint="MAGI2_INPUT_ROOTS names no prefix s3://bucket/prefix/"
            )
        found = [prefix for prefix in self.prefixes if prefix.holds(address)]
        if not found:
            raise self._outside()
        return max(found, key=lambda prefix: len(prefix.prefix))

    def _outside(self) -> UnreadableError:
        listed = ", ".join(map(shown, (*self.folders, *self.prefixes))) or "none"
        return UnreadableError("lies outside the folders for inputs", hint=f"these are {listed}")

    def _check_place(self, place: Path) -> None:
        if not any(place.is_relative_to(folder) for folder in self.folders):
            raise self._outside()
        for what, closed in self.closed.items():
            if place.is_relative_to(closed):
                raise UnreadableError(f"lies in {what}, from which no input is read")


def text_of(content: bytes, what: str, *, in_rows: bool = False) -> str:
    """The text of a file as `decode` reads it; all line ends are `\\n`. Raises InputError beginning with `what`."""
    try:
        text = decode(content, in_rows=in_rows)
    except ValueError as error:
        raise InputError(f"{what}: unreadable: {error}", hint=SAVE_AS_UTF8) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_unchanged(path: Path, sha256: str) -> bytes:
    """The picture that was checked before, read again. Raises ImageError when it is another, or unreadable."""
    try:
        content = InputRoots.around(path).read(path, MAX_PICTURE_BYTES)
    except UnreadableError as error:
        raise ImageError(f"{shown(path)}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ImageError(f"{shown(path)}: changed since the batch was read")
    return content


def folder_of(file: Location) -> Location:
    """The folder of a file, after links are followed; that of an object is where its key says."""
    return resolved(file).parent if isinstance(file, Path) else file.parent


def resolved(path: Path) -> Path:
    """The absolute path after links and `..` are followed, also of what is not there. Raises UnreadableError."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        raise UnreadableError("is no path") from None


def _alike(folder: Path, name: str) -> Path:
    """What lies in a folder under a name that reads the same, if one does."""
    try:
        names = os.listdir(folder)
    except OSError:
        return folder / name
    wanted = unicodedata.normalize("NFC", name)
    return folder / next((found for found in names if unicodedata.normalize("NFC", found) == wanted), name)


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    handle = None
    try:
        handle = os.open(place, _FLAGS)
        yield handle
    except FileNotFoundError:
        raise AbsentError("No such file or directory") from None
    except OSError as error:
        reason = error.strerror or "cannot be opened"
        if is_the_machines(error) and error.errno not in _SPECIAL_FILES:
            raise InfrastructureError(f"{shown(place)}: {reason}") from None
        raise UnreadableError(reason) from None
    finally:
        if handle is not None:
            os.close(handle)


def _check_kind(state: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise UnreadableError("is a folder")
    if not stat.S_ISREG(state.st_mode):
        raise UnreadableError("is no regular file")
    if state.st_size > limit:
        raise UnreadableError(f"has {state.st_size} bytes, at most {limit}")


@cache
def _process_folder() -> Path:
    """A folder that goes with this process."""
    folder = TemporaryDirectory(prefix="magi2-inputs-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
