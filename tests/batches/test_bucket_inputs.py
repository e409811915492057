"""A batch file, its prompts and its pictures from a bucket: the same clips as from a folder, the same limits."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from magi2.batches.batch_file import make_batch, read_batch, read_rows
from magi2.batches.rows import Row
from magi2.config.profiles import Profiles
from magi2.errors import AwayError, InputError, Magi2Error, SourceError
from magi2.inputs.files import InputRoots, read_unchanged
from magi2.inputs.limits import MAX_BATCH_BYTES, MAX_PICTURE_BYTES, MAX_TEXT_BYTES
from magi2.inputs.objects import ObjectAddress, ObjectPrefix
from magi2.inputs.refusals import AbsentError
from tests.render_helpers import CONFIGS

ROWS = [
    {"prompt_file": "texts/kite.txt", "seed": 1},
    {"prompt": "a boat", "image": "boat.png", "seed": 2},
    {"prompt": "a boat", "image": {"<Figure 1>": "s3://studio/in/boat.png"}, "seed": 3},
]


class Bucket(dict[str, bytes]):
    """Objects by key below in/; `limits` are those that each was asked for with."""

    limits: dict[str, int]

    def roots(self, *folders: Path, kept: Path) -> InputRoots:
        self.limits = {}
        return InputRoots(folders, prefixes=(ObjectPrefix("studio", "in/", self.read),), kept=kept)

    def read(self, key: str, limit: int) -> bytes:
        self.limits[key] = limit
        if key not in self:
            raise AbsentError("no such object")
        return self[key]


@pytest.fixture
def bucket() -> Bucket:
    picture = io.BytesIO()
    Image.new("RGB", (160, 90), "teal").save(picture, "png")
    night = "\n".join(map(json.dumps, ROWS)).encode()
    return Bucket({"in/night.jsonl": night, "in/texts/kite.txt": b"a kite", "in/boat.png": picture.getvalue()})


def test_clips_of_a_bucket_are_those_of_a_folder_and_outlive_the_objects(bucket: Bucket, tmp_path: Path) -> None:
    for key, content in bucket.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    address = ObjectAddress("studio", "in/night.jsonl")
    roots = bucket.roots(tmp_path / "in", kept=tmp_path)
    found = read_batch(address, Profiles(CONFIGS, "tiny"), roots).require_good()
    local = read_batch(tmp_path / "in" / "night.jsonl", Profiles(CONFIGS, "tiny"), roots).require_good()
    assert [clip.clip_id for clip in found.clips] == [clip.clip_id for clip in local.clips]
    assert bucket.limits == {
        "in/night.jsonl": MAX_BATCH_BYTES,
        "in/texts/kite.txt": MAX_TEXT_BYTES,
        "in/boat.png": MAX_PICTURE_BYTES,
    }
    content = bucket.pop("in/boat.png")
    for clip in found.clips[1:]:
        (figure,) = clip.figures
        assert read_unchanged(figure.path, figure.sha256) == content


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt_file": "absent.txt"}, r"no such object \(relative paths start at s3://studio/in/\)"),
        ({"prompt": "p", "image": "absent.png"}, r"no such image \(relative paths start at s3://studio/in/\)"),
        ({"prompt": "p", "image": "s3://studio/in/absent.png"}, "no such image$"),
        ({"prompt": "p", "image": "../boat.png"}, r"has the part '\.\.'"),
        ({"prompt_file": "s3://studio/in-evil/kite.txt"}, "lies outside"),
        ({"prompt_file": "s3://other/in/kite.txt"}, "lies outside"),
        ({"prompt_file": "/etc/passwd"}, "lies outside"),
        ({"prompt": "p", "image": "https://studio/in/boat.png"}, "is an address, not a file"),
        ({"prompt": "p", "image": "texts/kite.txt"}, "image texts/kite.txt: "),
    ],
)
def test_bad_row_costs_itself_alone(row: dict[str, object], reason: str, bucket: Bucket, tmp_path: Path) -> None:
    rows = [Row(1, {"prompt": "a kite"}), Row(2, row)]
    folder = ObjectAddress("studio", "in/")
    batch = make_batch(rows, Profiles(CONFIGS, "tiny"), folder=folder, roots=bucket.roots(kept=tmp_path))
    (bad,) = batch.bad_rows
    with pytest.raises(InputError, match=reason):
        raise InputError(bad.reason)
    assert len(batch.clips) == 1


@pytest.mark.parametrize("error", [AwayError("away"), SourceError("refused")])
def test_trouble_of_the_server_is_no_rows_fault(error: Magi2Error, tmp_path: Path) -> None:
    def failing(key: str, limit: int) -> bytes:
        raise error

    roots = InputRoots((), prefixes=(ObjectPrefix("studio", "", failing),))
    for row in ({"prompt_file": "a.txt"}, {"prompt": "p", "image": "a.png"}):
        with pytest.raises(type(error)):
            make_batch([Row(1, row)], Profiles(CONFIGS, "tiny"), folder=ObjectAddress("studio", ""), roots=roots)


def test_batch_file_that_is_absent_or_of_no_known_kind_is_refused_by_its_address(
    bucket: Bucket, tmp_path: Path
) -> None:
    roots = bucket.roots(kept=tmp_path)
    for key, reason in (("in/absent.csv", "no such object"), ("in/texts/kite.txt", "unknown kind of batch file")):
        with pytest.raises(InputError, match=rf"^s3://studio/{key}: .*{reason}"):
            read_rows(ObjectAddress("studio", key), roots)
