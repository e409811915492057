"""Pictures of a batch: read once, decoded once, refused with what to do, and kept as they are to be shown."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from magi2.batches import pictures as module
from magi2.batches.batch_file import Batch, Row, make_batch
from magi2.batches.schema import ClipDocument
from magi2.config.profiles import Profiles
from magi2.inputs.files import InputRoots
from magi2.media.image import Picture
from tests.media.picture_samples import noisy, saved
from tests.render_helpers import CONFIGS


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests of the contents that are decoded."""
    digests: list[str] = []
    load = module.load_reference

    def counted(content: bytes, *settings: Any) -> Picture:
        digests.append(hashlib.sha256(content).hexdigest())
        return load(content, *settings)

    monkeypatch.setattr(module, "load_reference", counted)
    return digests


def read(folder: Path, *images: object, profile: str = "tiny") -> Batch:
    rows = [Row(n, {"prompt": f"scene {n}", "image": image}) for n, image in enumerate(images, start=1)]
    return make_batch(rows, Profiles(CONFIGS, profile), folder=folder)


def test_picture_is_read_and_decoded_once_however_many_rows_name_it(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 rows with one picture of 12 megapixels took 800 CPU seconds, and take 2."""
    (tmp_path / "a.png").write_bytes(saved(noisy(), "PNG"))
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    reads: list[str] = []
    read_picture = InputRoots.read_picture
    monkeypatch.setattr(
        InputRoots,
        "read_picture",
        lambda self, path, *rest, **more: reads.append(path.name) or read_picture(self, path, *rest, **more),
    )
    batch = read(tmp_path, *["a.png", "copy.png", "a.png"] * 20).require_good()
    assert len(batch.clips) == 60
    assert (len(decoded), sorted(reads)) == (1, ["a.png", "copy.png"])


def test_picture_that_is_refused_is_looked_at_once_and_each_row_says_why(tmp_path: Path, decoded: list[str]) -> None:
    (tmp_path / "bad.png").write_bytes(saved(noisy(), "PNG")[:-20])
    batch = read(tmp_path, *["bad.png"] * 5)
    assert len(decoded) == 1
    assert [row.number for row in batch.bad_rows] == [1, 2, 3, 4, 5]
    assert {row.reason for row in batch.bad_rows} == {
        "image bad.png: not a readable image: damaged, it is cut off (save or copy it again)"
    }


def test_profiles_of_one_size_share_a_look_at_a_picture(tmp_path: Path, decoded: list[str]) -> None:
    (tmp_path / "a.png").write_bytes(saved(noisy(), "PNG"))
    names = ("tiny", "demo", "540p")  # the first two have previews of 128x64
    rows = [Row(n, {"prompt": "x", "image": "a.png", "profile": name}) for n, name in enumerate(names)]
    make_batch(rows, Profiles(CONFIGS, "tiny"), folder=tmp_path).require_good()
    assert len(decoded) == 2


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/a.png",
        "HTTP://example.com/a.png",
        "s3://bucket/a.png",
        "file:///a.png",
        "data:image/png;base64,AAAA",
    ],
)
def test_address_is_refused_as_one_with_what_is_taken(tmp_path: Path, address: str) -> None:
    (row,) = read(tmp_path, address).bad_rows
    assert "is an address, not a file" in row.reason
    assert "AVIF, BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP" in row.reason


def test_path_of_another_system_is_explained(tmp_path: Path) -> None:
    (row,) = read(tmp_path, "pictures\\a.png").bad_rows
    assert "folders are parted by / here" in row.reason


def test_what_is_odd_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.new("RGB", (2, 2), "red").save(tmp_path / "dot.png")
    with caplog.at_level(logging.WARNING):
        read(tmp_path, *["dot.png"] * 3).require_good()
    assert [record.getMessage() for record in caplog.records] == [
        "image dot.png is enlarged more than 8 times: its clips are flagged",
        "image dot.png is of one colour, or nearly so: its clips are flagged",
    ]


def test_treatment_of_a_picture_outlives_documents_and_does_not_change_the_clips_id(tmp_path: Path) -> None:
    noisy().convert("RGBA").save(tmp_path / "opaque.png")
    clear = noisy().convert("RGBA")
    clear.putalpha(100)
    clear.save(tmp_path / "clear.png")
    opaque, shown = read(tmp_path, "opaque.png", "clear.png").require_good().clips
    assert (opaque.figures[0].treatment, shown.figures[0].treatment) == ((), ("flattened",))
    document = ClipDocument.of(shown).model_dump_json()
    assert ClipDocument.model_validate_json(document).to_clip() == shown
    older = json.loads(document)
    del older["figures"][0]["treatment"]
    assert ClipDocument.model_validate(older).to_clip().clip_id == shown.clip_id


def test_profile_decides_about_transparent_pictures(tmp_path: Path) -> None:
    clear = noisy().convert("RGBA")
    clear.putalpha(100)
    clear.save(tmp_path / "clear.png")
    rows = [Row(1, {"prompt": "x", "image": "clear.png"})]
    profiles = Profiles(CONFIGS, "tiny", ["preview.reference_background=refuse"])
    (row,) = make_batch(rows, profiles, folder=tmp_path).bad_rows
    assert row.reason.startswith("image clear.png: is transparent in parts")


def test_digest_of_a_profile_is_not_changed_by_the_background_that_it_does_not_set() -> None:
    plain = Profiles(CONFIGS, "tiny")(None)
    named = Profiles(CONFIGS, "tiny", ["preview.reference_background=[255, 255, 255]"])(None)
    other = Profiles(CONFIGS, "tiny", ["preview.reference_background=[0, 0, 0]"])(None)
    assert plain.digest() == named.digest() != other.digest()
    assert "reference_background" not in json.dumps(plain.model_dump(mode="json"))
