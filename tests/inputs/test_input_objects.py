"""Objects that a batch names: which are read, and which never are, however their addresses are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.errors import ImageError, InputError
from magi2.inputs.files import InputRoots
from magi2.inputs.limits import MAX_KEY_BYTES
from magi2.inputs.objects import Location, ObjectAddress, ObjectPrefix, location_in
from magi2.inputs.refusals import AbsentError

SECRET = b"hunter2-of-the-bucket"
OWN = b"a kite"


def anything(key: str, limit: int) -> bytes:
    """Every object is there, so that what is refused was never asked for."""
    return OWN if key in ("prompts/a.txt", "prompts/below/a b+ü#1.txt") else SECRET


@pytest.fixture
def roots(tmp_path: Path) -> InputRoots:
    return InputRoots((tmp_path,), prefixes=(ObjectPrefix("studio", "prompts/", anything),))


def read(roots: InputRoots, text: str, folder: Location | None = None) -> bytes:
    return roots.read_content(location_in(folder, text), "prompt_file x", 100)


@pytest.mark.parametrize("name", ["a.txt", "below/a b+ü#1.txt"])
def test_object_below_the_prefix_is_read_by_its_address_and_beside_its_file(name: str, roots: InputRoots) -> None:
    assert read(roots, f"s3://studio/prompts/{name}") == OWN
    assert read(roots, name, ObjectAddress("studio", "prompts/night.csv").parent) == OWN


@pytest.mark.parametrize(
    "text",
    [
        *("s3://studio/prompts-evil/a.txt", "s3://studio/promptsa.txt", "s3://studio/prompts", "s3://studio/a.txt"),
        *("s3://studi/prompts/a.txt", "s3://studio2/prompts/a.txt", "s3://STUDIO/prompts/a.txt", "s3:///prompts/a.txt"),
        *("s3://studio@evil/prompts/a.txt", "s3://key:word@studio/prompts/a.txt", "s3://studio:80/prompts/a.txt"),
        *("s3://studio//prompts/a.txt", "s3://studio/./prompts/a.txt", "s3://studio/%70rompts/a.txt"),
        *("S3://studio/prompts/a.txt", "s3:/studio/prompts/a.txt", "/etc/passwd", "s3://studio", "s3://"),
    ],
)
def test_what_lies_elsewhere_is_refused(text: str, roots: InputRoots) -> None:
    with pytest.raises(InputError, match=r"lies outside the folders for inputs .*s3://studio/prompts/\)"):
        read(roots, text, Path("/srv"))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        *((key, r"has the part '\.\.'") for key in ("../secret.txt", "below/../../secret.txt", "..")),
        *((key, r"has the part '\.'") for key in ("./a.txt", "below/./a.txt")),
        *((key, "has an empty part") for key in ("/a.txt", "below//a.txt", "below/", "")),
        *((key, "has the escape %") for key in ("%2e%2e/secret.txt", "..%2fsecret.txt", "a%00.txt", "%61.txt")),
        *((key, "has a question mark") for key in ("a.txt?versionId=1", "a.txt?endpoint=http://evil")),
        (r"..\secret.txt", "has a backslash"),
        *((key, "does not show") for key in ("a\n.txt", "a\0.txt", "a\u202e.txt")),
        ("a" * MAX_KEY_BYTES, f"has more than {MAX_KEY_BYTES} bytes"),
    ],
)
@pytest.mark.parametrize("form", ["s3://studio/prompts/{}", "{}"])
def test_key_that_is_not_the_one_plain_way_to_write_it_is_refused_by_name(
    key: str, reason: str, form: str, roots: InputRoots
) -> None:
    if form == "{}" and key.startswith("/"):
        reason = "lies outside"  # an absolute path of this host
    with pytest.raises(InputError, match=reason):
        read(roots, form.format(key), ObjectAddress("studio", "prompts/"))


def test_relative_path_of_rows_without_a_folder_is_refused(roots: InputRoots) -> None:
    with pytest.raises(InputError, match="is a relative path"):
        read(roots, "a.txt", None)
    assert read(roots, "s3://studio/prompts/a.txt", None) == OWN


def test_longest_prefix_reads_with_its_own_credentials() -> None:
    prefixes = (
        ObjectPrefix("studio", "", lambda key, limit: b"all"),
        ObjectPrefix("studio", "prompts/", lambda key, limit: b"own"),
    )
    for ordered in (prefixes, prefixes[::-1]):
        roots = InputRoots((), prefixes=ordered)
        assert read(roots, "s3://studio/prompts/a.txt") == b"own"
        assert read(roots, "s3://studio/other/a.txt") == b"all"


def test_picture_of_a_bucket_is_kept_under_its_digest_in_the_given_folder(roots: InputRoots, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    roots = InputRoots((), prefixes=roots.prefixes, kept=kept)
    place = ObjectAddress("studio", "prompts/a.png")
    assert roots.local_file(place, b"pixels", "ab" * 32) == kept / f"{'ab' * 32}.png"
    assert (kept / f"{'ab' * 32}.png").read_bytes() == b"pixels"


def test_absent_picture_says_so() -> None:
    def absent(key: str, limit: int) -> bytes:
        raise AbsentError("no such object")

    roots = InputRoots((), prefixes=(ObjectPrefix("studio", "", absent),))
    with pytest.raises(ImageError, match=r"^image x: no such image"):
        roots.read_picture(ObjectAddress("studio", "a.png"), "image x")
