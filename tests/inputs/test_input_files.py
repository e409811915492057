"""Opening a file that a batch names: what is read, and what never is."""

from __future__ import annotations

import errno
import os
import socket
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.errors import ConfigError, ImageError, InfrastructureError, InputError
from magi2.inputs import files
from magi2.inputs.files import InputRoots, read_unchanged
from magi2.inputs.limits import MAX_PICTURE_BYTES, MAX_TEXT_BYTES
from magi2.inputs.refusals import UnreadableError

SECRET = "hunter2-of-the-worker"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for inputs, beside one with a secret."""
    (tmp_path / "root" / "below").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    return tmp_path / "root"


def link(path: Path, target: str | Path) -> Path:
    path.symlink_to(target)
    return path


def bound_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))
    return path


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


FORBIDDEN: dict[str, Callable[[Path], Path]] = {
    "an absolute path outside": lambda root: root.parent / "outside" / "secret.txt",
    "a path that climbs out": lambda root: root / ".." / "outside" / "secret.txt",
    "a path that climbs out of a folder below": lambda root: root / "below" / ".." / ".." / "outside" / "secret.txt",
    "an absolute link": lambda root: link(root / "a.txt", root.parent / "outside" / "secret.txt"),
    "a relative link": lambda root: link(root / "a.txt", "../outside/secret.txt"),
    "a link to a link": lambda root: link(root / "b.txt", link(root / "a.txt", "../outside/secret.txt")),
    "a folder that is a link": lambda root: link(root / "out", "../outside") / "secret.txt",
    "a link to itself": lambda root: link(root / "a.txt", "a.txt"),
    "a folder of a like name": lambda root: root.parent / "root2" / "secret.txt",
    "the environment": lambda root: Path("/proc/self/environ"),
    "the environment by a link": lambda root: link(root / "a.txt", "/proc/self/environ"),
    "the working folder by /proc": lambda root: Path("/proc/self/cwd/secret.txt"),
    "an endless device": lambda root: Path("/dev/zero"),
    "an endless device by a link": lambda root: link(root / "a.txt", "/dev/zero"),
    "the terminal": lambda root: Path("/dev/tty"),
    "a FIFO": lambda root: fifo(root / "a.txt"),
    "a FIFO by a link": lambda root: link(root / "b.txt", fifo(root / "a.txt")),
    "a socket": lambda root: bound_socket(root / "a.txt"),
    "a folder": lambda root: root / "below",
    "the root itself": lambda root: root,
    "nothing": lambda root: root / "absent.txt",
    "no path": lambda root: root / "nul\0.txt",
    "a name that is too long": lambda root: root / ("x" * 300),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_nothing_but_a_regular_file_of_the_roots_is_read(
    case: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("A_SECRET", SECRET)
    with pytest.raises(UnreadableError) as caught:
        InputRoots((root,)).read(FORBIDDEN[case](root), MAX_TEXT_BYTES)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "below/a.txt", "below/../a.txt", "link.txt", "link/a.txt"])
def test_a_regular_file_of_the_roots_is_read_by_whatever_way(name: str, root: Path) -> None:
    for place in (root / "a.txt", root / "below" / "a.txt"):
        place.write_text("a heron")
    link(root / "link.txt", "below/a.txt")
    link(root / "link", root / "below")
    roots = InputRoots((link(root.parent / "entrance", root),))
    assert roots.read(root / name, 100) == roots.read(root.parent / "entrance" / name, 100) == b"a heron"


def test_what_lies_outside_is_refused_alike_whether_it_is_there_or_not(root: Path) -> None:
    reasons = []
    for name in ("secret.txt", "absent.txt"):
        with pytest.raises(UnreadableError) as caught:
            InputRoots((root,)).read(root.parent / "outside" / name, 100)
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize("swapped", ["a.txt", "below"])
def test_a_link_put_in_place_after_the_look_at_the_path_leads_nowhere(
    swapped: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, or the folder it lies in, is exchanged at the last moment before it is opened."""
    for place in (root / "a.txt", root / "below" / "secret.txt"):
        place.write_text("a heron")
    opened = os.open

    def exchange(path: str | Path, flags: int, *rest: int) -> int:
        (root / swapped).rename(root / "aside")
        link(root / swapped, root.parent / "outside" / ("secret.txt" if swapped == "a.txt" else ""))
        return opened(path, flags, *rest)

    monkeypatch.setattr(files.os, "open", exchange)
    with pytest.raises(UnreadableError) as caught:
        InputRoots((root,)).read(root / "a.txt" if swapped == "a.txt" else root / "below" / "secret.txt", 100)
    assert SECRET not in str(caught.value)


def test_the_open_file_is_what_is_checked_and_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanged right after it was opened, the file that was opened is read."""
    path = root / "a.txt"
    path.write_text("a heron")
    opened = os.open

    def open_and_exchange(*arguments: object) -> int:
        handle = opened(*arguments)  # type: ignore[arg-type]
        path.unlink()
        link(path, "../outside/secret.txt")
        return handle

    monkeypatch.setattr(files.os, "open", open_and_exchange)
    assert InputRoots((root,)).read(path, 100) == b"a heron"


def test_a_file_that_grows_while_it_is_read_stays_within_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "a.txt"
    path.write_text("x" * 100)
    looked_at = os.fstat

    def grow(handle: int) -> os.stat_result:
        state = looked_at(handle)
        path.write_text("x" * 101)
        return state

    monkeypatch.setattr(files.os, "fstat", grow)
    with pytest.raises(UnreadableError, match="has more than 100 bytes"):
        InputRoots((root,)).read(path, 100)


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


def test_texts_and_pictures_have_a_size(root: Path) -> None:
    roots, path = InputRoots((root,)), root / "a"
    assert len(roots.read_text(sparse(path, MAX_TEXT_BYTES), "a")) == MAX_TEXT_BYTES
    with pytest.raises(InputError, match=f"a: unreadable: has {MAX_TEXT_BYTES + 1} bytes, at most {MAX_TEXT_BYTES}"):
        roots.read_text(sparse(path, MAX_TEXT_BYTES + 1), "a")
    assert len(roots.read_picture(sparse(path, MAX_PICTURE_BYTES), "a")) == MAX_PICTURE_BYTES
    with pytest.raises(ImageError, match=f"a: .* at most {MAX_PICTURE_BYTES}"):
        roots.read_picture(sparse(path, MAX_PICTURE_BYTES + 1), "a")


def test_text_comes_without_its_byte_order_mark_and_with_one_line_end(root: Path) -> None:
    (root / "a.txt").write_bytes("\ufeffeins\r\nzwei\rdrei\n".encode())
    assert InputRoots((root,)).read_text(root / "a.txt", "a.txt") == "eins\nzwei\ndrei\n"


def test_a_picture_that_was_exchanged_since_it_was_checked_is_refused(root: Path) -> None:
    path = root / "a.png"
    path.write_bytes(b"a picture")
    with pytest.raises(ImageError, match=r"a\.png: changed since the batch was read"):
        read_unchanged(path, "0" * 64)
    path.unlink()
    fifo(path)
    with pytest.raises(ImageError, match="no regular file"):
        read_unchanged(path, "0" * 64)


@pytest.mark.parametrize("folder", ["/", "//", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/proc/1/../../.."])
def test_the_systems_own_folders_are_no_roots(folder: str) -> None:
    with pytest.raises(ConfigError, match="inputs are not read from"):
        InputRoots((Path(folder),))


def test_a_link_to_the_systems_own_folders_is_no_root(tmp_path: Path) -> None:
    for target in ("/", "/proc/self"):
        with pytest.raises(ConfigError, match="inputs are not read from"):
            InputRoots((link(tmp_path / f"to{target.replace('/', '-')}", target),))


@pytest.mark.parametrize("place", ["", "store", "store/documents", "to-store", "store/../store"])
def test_a_root_and_a_closed_folder_do_not_overlap(place: str, tmp_path: Path) -> None:
    (tmp_path / "store" / "documents").mkdir(parents=True)
    link(tmp_path / "to-store", "store")
    with pytest.raises(ConfigError, match="the store is"):
        InputRoots((tmp_path / place,), {"the store": tmp_path / "store"}).require_apart()
    InputRoots((tmp_path / "store2",), {"the store": tmp_path / "store"}).require_apart()


def test_nothing_is_read_from_a_closed_folder_inside_a_root(root: Path) -> None:
    (root / "below" / "a.txt").write_text(SECRET)
    link(root / "link.txt", "below/a.txt")
    roots = InputRoots((root,), {"the store": root / "below"})
    for name in ("below/a.txt", "link.txt"):
        with pytest.raises(UnreadableError, match="lies in the store, from which no input is read"):
            roots.read(root / name, 100)


def test_a_folder_lies_in_the_roots_or_is_refused(root: Path) -> None:
    InputRoots((root,)).require_folder(root / "below" / ".." / "below")
    for folder in (root.parent, root / "..", root.parent / "outside", link(root / "out", "../outside")):
        with pytest.raises(InputError, match="lies outside the folders for inputs"):
            InputRoots((root,)).require_folder(folder)


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "a.txt").write_text("a heron")
    before = len(os.listdir("/proc/self/fd"))
    roots = InputRoots((root,))
    roots.read(root / "a.txt", 100)
    for path, limit in ((root / "a.txt", 3), (root / "below", 100), (fifo(root / "b.txt"), 100)):
        with pytest.raises(UnreadableError):
            roots.read(path, limit)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT])
def test_a_disk_that_fails_is_no_fault_of_the_file(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (root / "prompt.txt").write_text("a cat")

    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(InfrastructureError, match=os.strerror(number)):
        InputRoots((root,)).read_text(root / "prompt.txt", "prompt_file prompt.txt")


@pytest.mark.parametrize("written", ["NFC", "NFD"])
@pytest.mark.parametrize("stored", ["NFC", "NFD"])
def test_name_is_found_however_its_accents_are_composed(tmp_path: Path, written: str, stored: str) -> None:
    """An archive from a Mac names files as no other system does."""
    folder = tmp_path / unicodedata.normalize(stored, "Müller")
    folder.mkdir()
    path = folder / unicodedata.normalize("NFC", "café.txt")  # the folder and the file need not agree
    path.write_text("found")
    asked = tmp_path / unicodedata.normalize(written, "Müller/café.txt")
    roots = InputRoots((tmp_path,))
    assert roots.read_text(asked, "it") == "found"
    assert roots.find(asked).samefile(path)


def test_no_folder_outside_is_searched_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.setattr(os, "listdir", lambda folder: pytest.fail(f"{folder} was listed"))
    with pytest.raises(UnreadableError, match="outside"):
        InputRoots((tmp_path / "inside",)).read(tmp_path / "é.txt", 10)
