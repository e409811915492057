"""Files appear whole or not at all, and an operating system's error becomes the one that says what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts.disk import link_file
from magi2.errors import (
    CheckpointError,
    CorruptedArtifactError,
    ImageError,
    InfrastructureError,
    InputError,
    Magi2Error,
    MediaError,
)
from magi2.files import (
    disk_errors,
    error_of_a_program,
    machine_error,
    make_store_folder,
    partial_file,
    write_durably,
)

MACHINE = ["ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENODEV", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EMFILE", "ENFILE"]
MACHINE += ["EFBIG", "ENOMEM", "ENOLCK", "EUCLEAN", "ECONNRESET", "ECONNREFUSED", "ENETRESET", "EAGAIN", "EKEYEXPIRED"]
PATH = ["ENOENT", "EACCES", "EPERM", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "ENAMETOOLONG", "ELOOP"]


def fault(name: str, filename: str | None = None) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), filename)


@pytest.mark.parametrize("name", MACHINE)
def test_the_machines_errors_are_retried_whatever_the_caller_makes_of_others(tmp_path: Path, name: str) -> None:
    for guarded in (disk_errors(tmp_path, MediaError), partial_file(tmp_path / "a.wav", MediaError)):
        with pytest.raises(InfrastructureError, match=os.strerror(getattr(errno, name))) as caught, guarded:
            raise fault(name)
        assert caught.value.retryable and isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("name", PATH)
@pytest.mark.parametrize("refused", [MediaError, InputError, ImageError])
def test_an_error_of_the_path_is_of_the_class_that_the_caller_gives(
    tmp_path: Path, name: str, refused: type[MediaError]
) -> None:
    for guarded in (disk_errors(tmp_path, refused), partial_file(tmp_path / "a.wav", refused)):
        with pytest.raises(refused) as caught, guarded:
            raise fault(name)
        assert type(caught.value) is refused and not caught.value.retryable


@pytest.mark.parametrize("name", PATH)
def test_without_a_class_every_error_is_the_machines(tmp_path: Path, name: str) -> None:
    with pytest.raises(InfrastructureError), disk_errors(tmp_path):
        raise fault(name)


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_says_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(InfrastructureError, match="free some space and run again"), disk_errors(tmp_path):
        raise fault(name)


class LibraryError(Exception):
    """What a library raises that writes files by itself."""


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        LibraryError("Error while serializing: I/O error: No space left on device (os error 28)"),
        LibraryError("[enforce fail at inline_container.cc:603] . write failed: No space left on device"),
        raised_from(LibraryError("unexpected pos 640 vs 534"), fault("ENOSPC")),
        raised_from(LibraryError("cannot write"), raised_from(RuntimeError("writer"), fault("EDQUOT"))),
    ],
)
def test_what_a_library_makes_of_a_full_disk_is_the_machines(tmp_path: Path, error: Exception) -> None:
    for guarded in (disk_errors(tmp_path, MediaError), partial_file(tmp_path / "a.wav", MediaError)):
        with pytest.raises(InfrastructureError, match="free some space") as caught, guarded:
            raise error
        assert "\n" not in str(caught.value)
    assert isinstance(machine_error(error), InfrastructureError)


def test_an_error_of_the_path_behind_a_bug_does_not_make_it_the_systems(tmp_path: Path) -> None:
    bug = raised_from(KeyError("a bug"), fault("ENOENT"))
    with pytest.raises(KeyError), disk_errors(tmp_path, InputError):
        raise bug
    assert machine_error(bug) is None and machine_error(ValueError("no")) is None


@pytest.mark.parametrize("kind", [CheckpointError, ImageError, MediaError])
def test_an_error_of_ours_that_the_machine_is_behind_may_pass(kind: type[Magi2Error]) -> None:
    may_pass = machine_error(raised_from(kind("weights: unreadable"), fault("ESTALE")))
    assert may_pass is not None and str(may_pass) == "weights: unreadable"
    assert machine_error(raised_from(kind("weights: unreadable"), fault("ENOENT"))) is None
    assert machine_error(kind("weights: unreadable")) is None


def test_an_error_that_is_retried_anyway_keeps_its_class(tmp_path: Path) -> None:
    damaged = raised_from(CorruptedArtifactError("a: is damaged"), fault("EIO"))
    assert machine_error(damaged) is None
    with pytest.raises(CorruptedArtifactError), disk_errors(tmp_path):
        raise damaged


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EIO", "ESTALE"])
def test_a_program_that_names_the_disk_failed_by_the_machine(name: str) -> None:
    said = f"av_interleaved_write_frame(): {os.strerror(getattr(errno, name))}"
    assert isinstance(error_of_a_program("mux failed", said, MediaError), InfrastructureError)
    assert type(error_of_a_program("mux failed", "Invalid data found", MediaError)) is MediaError


def test_the_file_that_the_error_speaks_of_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"^/elsewhere/weights: Input/output error$"), disk_errors(tmp_path):
        raise fault("EIO", "/elsewhere/weights")
    target = tmp_path / "clip.mp4"
    with pytest.raises(MediaError, match=r"/source\.mp4: No such file") as caught, partial_file(target, MediaError):
        raise fault("ENOENT", "/source.mp4")
    assert str(caught.value).startswith(f"cannot write {target}: ")
    with pytest.raises(MediaError) as caught, partial_file(target, MediaError) as partial:
        raise fault("EACCES", str(partial))
    assert str(caught.value) == f"cannot write {target}: Permission denied"


@pytest.mark.parametrize("error", [KeyError("a bug"), OSError("decoder lost")])
def test_errors_that_are_not_the_systems_pass_through(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, partial_file(tmp_path / "a", InputError):
        raise error
    assert caught.value is error and list(tmp_path.iterdir()) == []


def test_the_file_appears_with_its_whole_content_at_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with partial_file(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert (target.read_text(), list(tmp_path.iterdir())) == ("new", [target])


def test_a_block_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with pytest.raises(InputError), partial_file(target) as partial:
        partial.write_text("ne")
        raise InputError("no")
    assert (target.read_text(), list(tmp_path.iterdir())) == ("old", [target])


def test_two_writers_of_one_file_do_not_share_a_partial_file(tmp_path: Path) -> None:
    with partial_file(tmp_path / "a") as one, partial_file(tmp_path / "a") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a").read_text() == "one"


@pytest.mark.parametrize("refused", [MediaError, InputError])
def test_a_target_that_cannot_become_a_file_is_refused_before_the_work(
    tmp_path: Path, refused: type[MediaError]
) -> None:
    (tmp_path / "taken").mkdir()
    for name, reason in (("taken", "it is a folder"), ("absent/a", "absent is not a folder")):
        with pytest.raises(refused, match=f"cannot write .*{reason}"), partial_file(tmp_path / name, refused):
            pytest.fail("the block ran")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the kernel has no device that is always full")
def test_a_device_that_is_really_full_is_worth_a_retry(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="No space left"), partial_file(tmp_path / "a") as partial:
        partial.symlink_to("/dev/full")
        partial.write_bytes(b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_is_written_durably_once(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", b"content")
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "a", b"other")
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_folder_that_goes_while_it_is_looked_at_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes empty folders may do so between the two looks of somebody who makes one."""
    source, folder, mkdir = tmp_path / "source", tmp_path / "store" / "a", Path.mkdir
    source.write_bytes(b"content")
    met: list[Path] = []

    def meets_another(path: Path, *given: Any, **named: Any) -> None:
        if path == folder and not met:
            met.append(path)
            raise FileExistsError(errno.EEXIST, "File exists", str(path))  # which is gone by now
        mkdir(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", meets_another)
    link_file(source, folder / "target", root=tmp_path / "store")
    assert met and (folder / "target").read_bytes() == b"content"


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no folder")
    (tmp_path / "b").symlink_to("nowhere")
    for name in ("a", "b"):
        with pytest.raises(FileExistsError):
            make_store_folder(tmp_path / name, root=tmp_path)


@pytest.mark.slow
def test_importing_it_costs_no_torch() -> None:
    code = "import magi2.files, sys; sys.exit(bool({'torch', 'numpy', 'av'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
