"""Marks of delivered files: there once, read by anybody's tools, and read from any file without trust in it."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import pytest
from PIL import Image

from magi2.errors import MediaError
from magi2.media.audio import write_silence
from magi2.media.deliver import deliver
from magi2.media.delivery import DeliverySpec
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.marks.aigc import AIGC_FIELDS, aigc_entry, parse_aigc
from magi2.media.marks.boxes import MAX_BOXES
from magi2.media.marks.read import Marks, read_marks
from magi2.media.marks.xmp import TRAINED, XMP_UUID, parse_xmp, xmp_packet
from magi2.media.poster import write_contact_sheet
from magi2.media.probe import probe
from tests.media.media_clips import moving_frames, write_lossless

PRODUCER = '某某影业 "A&B" <c>'
ENTRY = aigc_entry(PRODUCER, "a" * 64)
TAGS = {"AIGC": ENTRY, "comment": "a clip", "magi2_seed": "7", "magi2_artifact": "a" * 64}


EXPECTED = {"AIGC": [ENTRY], "DigitalSourceType": [TRAINED], "Magi2_Seed": [7], "Validate": ["OK"]}
"""What exiftool says."""


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory, program: Ffmpeg) -> Path:
    """A second of picture and silence, delivered with marks."""
    folder = tmp_path_factory.mktemp("marked")
    return send(folder, "a.mp4", program)


def send(folder: Path, name: str, program: Ffmpeg) -> Path:
    picture = write_lossless(folder / "in.mkv", moving_frames(25, 64, 96), program=program)
    write_silence(folder / "in.wav", 44_100)
    spec = DeliverySpec(preset="ultrafast", threads=1)
    times = {"fps": Fraction(25), "frame_count": 25}
    deliver(picture, folder / "in.wav", folder / name, spec, **times, metadata=TAGS, ffmpeg=program)
    return folder / name


def test_a_delivered_file_has_each_mark_once_and_stays_a_whole_clip(marked: Path) -> None:
    marks = read_marks(marked)
    assert marks == Marks((ENTRY,), marks.xmp, {"magi2_seed": "7", "magi2_artifact": "a" * 64})
    assert marks.entry == dict.fromkeys(AIGC_FIELDS, "") | {
        "Label": "1",
        "ContentProducer": PRODUCER,
        "ProduceID": "a" * 64,
    }
    assert (marks.source_types, marks.problems) == ((TRAINED,), ())
    found = probe(marked)
    assert found.video is not None and found.video.frame_count == 25
    with av.open(str(marked)) as container:
        assert container.metadata["AIGC"] == ENTRY
        assert not any("AIGC" in stream.metadata for stream in container.streams)


def test_equal_inputs_give_equal_bytes(marked: Path, tmp_path: Path, program: Ffmpeg) -> None:
    assert send(tmp_path, "b.mp4", program).read_bytes() == marked.read_bytes()


@pytest.mark.programs("exiftool")
def test_exiftool_finds_each_mark_once_and_nothing_to_complain_of(marked: Path) -> None:
    command = ["exiftool", "-json", "-G1", "-a", "-validate", "-all", str(marked)]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = json.loads(listed, object_pairs_hook=list)[0]
    said = {wanted: [value for name, value in found if name.endswith(f":{wanted}")] for wanted in EXPECTED}
    assert said == EXPECTED


@pytest.mark.parametrize("name", ["poster.jpg", "thumbnail.webp", "poster.png"])
def test_pictures_of_a_clip_name_their_source_too(marked: Path, tmp_path: Path, name: str) -> None:
    write_contact_sheet(marked, tmp_path / name, columns=1, rows=1)
    with Image.open(tmp_path / name) as image:
        packet = image.info["XML:com.adobe.xmp"].encode() if name.endswith("png") else image.info["xmp"]
    found = parse_xmp(packet)
    assert found is not None and found.source_types == (TRAINED,)


@pytest.mark.parametrize(
    ("options", "suffix", "kept"),
    [
        (("-c", "copy"), ".mp4", (False, False)),
        (("-c", "copy", "-map_metadata", "0", "-movflags", "use_metadata_tags"), ".mp4", (True, False)),
        (("-c:v", "libx264", "-preset", "ultrafast", "-c:a", "aac"), ".mp4", (False, False)),
        (("-c:v", "libx264", "-preset", "ultrafast", "-movflags", "use_metadata_tags"), ".mp4", (True, False)),
        (("-c", "copy"), ".mkv", (True, False)),
        (("-c", "copy"), ".mov", (False, False)),
    ],
)
def test_what_survives_ffmpeg_is_what_the_documents_say(
    marked: Path, tmp_path: Path, program: Ffmpeg, options: tuple[str, ...], suffix: str, kept: tuple[bool, bool]
) -> None:
    target = tmp_path / f"again{suffix}"
    command = [program.path, "-v", "error", "-nostdin", "-i", str(marked), *options, str(target)]
    subprocess.run(command, check=True)
    marks = read_marks(target)
    assert (marks.entry is not None, marks.source_types == (TRAINED,)) == kept
    assert (marks.tags.get("magi2_seed") == "7") == kept[0]


def box(kind: bytes, *parts: bytes, size: int | None = None) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content) if size is None else size, kind) + content


def full(kind: bytes, *parts: bytes) -> bytes:
    return box(kind, bytes(4), *parts)


def key_list(*names: str) -> bytes:
    return full(b"keys", struct.pack(">I", len(names)), *(box(b"mdta", name.encode()) for name in names))


def text(value: str) -> bytes:
    return box(b"data", struct.pack(">II", 1, 0), value.encode())


def meta(*items: tuple[int, str], keys: tuple[str, ...] = ("AIGC", "magi2_seed")) -> bytes:
    """Metadata by keys, as ffmpeg writes it."""
    values = (box(struct.pack(">I", number), text(value)) for number, value in items)
    return full(b"meta", full(b"hdlr", bytes(4), b"mdta", bytes(13)), key_list(*keys), box(b"ilst", *values))


def free_form(name: str, value: str) -> bytes:
    parts = (full(b"mean", b"com.apple.iTunes"), full(b"name", name.encode()), text(value))
    return full(b"meta", full(b"hdlr", bytes(21)), box(b"ilst", box(b"----", *parts)))


def xmp(packet: bytes) -> bytes:
    return box(b"uuid", XMP_UUID, packet)


FTYP = box(b"ftyp", b"isom", bytes(4))
ONE = box(b"moov", box(b"udta", meta((1, ENTRY), (2, "7"))))


def written(folder: Path, *boxes: bytes) -> Path:
    path = folder / "made.mp4"
    path.write_bytes(b"".join(boxes))
    return path


AIGC_PACKET = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:T="urn:t" T:AIGC="{}"/></rdf:RDF></x:xmpmeta>'
)


@pytest.mark.parametrize(
    ("boxes", "copies"),
    [
        ((ONE,), 1),
        ((box(b"moov"),), 0),
        ((box(b"moov", box(b"udta", meta((1, ENTRY), (1, ENTRY)))),), 2),
        ((box(b"moov", box(b"udta", meta((1, ENTRY), (2, ENTRY), keys=("AIGC", "AIGC")))),), 2),
        ((box(b"moov", meta((1, ENTRY)), box(b"udta", meta((1, ENTRY)))),), 2),
        ((meta((1, ENTRY)), ONE), 2),
        ((box(b"moov", box(b"trak", box(b"udta", meta((1, ENTRY)))), box(b"udta", meta((1, ENTRY)))),), 2),
        ((box(b"moov", box(b"udta", free_form("AIGC", ENTRY))),), 1),
        ((box(b"moov", box(b"udta", box(b"AIGC", ENTRY.encode()), bytes(4))),), 1),
        ((box(b"moov", box(b"udta", full(b"meta", box(b"ilst", box(b"AIGC", text(ENTRY)))))),), 1),
        ((ONE, xmp(AIGC_PACKET)), 2),
        ((ONE, box(b"moov", box(b"udta", box(b"XMP_", AIGC_PACKET)))), 2),
        ((box(b"moov", box(b"udta", meta((1, ENTRY))[:8] + meta((1, ENTRY))[12:])),), None),
    ],
)  # fmt: skip
def test_copies_are_counted_wherever_metadata_stands(
    tmp_path: Path, boxes: tuple[bytes, ...], copies: int | None
) -> None:
    path = written(tmp_path, FTYP, *boxes)
    if copies is None:  # the outer size is now wrong
        with pytest.raises(MediaError):
            read_marks(path)
        return
    assert len(read_marks(path).aigc) == copies


def test_metadata_of_quicktime_files_is_read_too(tmp_path: Path) -> None:
    values = box(b"ilst", box(struct.pack(">I", 1), text(ENTRY)))
    plain = box(b"meta", full(b"hdlr", bytes(21)), key_list("AIGC"), values)
    assert read_marks(written(tmp_path, box(b"wide"), box(b"moov", plain))).entry == parse_aigc(ENTRY)


HOSTILE: dict[str, tuple[bytes, ...]] = {
    "larger than the file": (FTYP, box(b"moov", size=2**32 - 1)),
    "larger than the one around it": (FTYP, box(b"moov", box(b"udta", size=9000)), bytes(20_000)),
    "smaller than a box": (FTYP, box(b"moov", size=7), bytes(100)),
    "without end inside another": (FTYP, box(b"moov", box(b"udta", size=0))),
    "64 bits of size": (FTYP, struct.pack(">I4sQ", 1, b"moov", 2**63)),
    "64 bits of size that go back": (FTYP, struct.pack(">I4sQ", 1, b"moov", 3)),
    "cut in the header": (FTYP, b"\0\0\0\x10mo"),
    "cut in the size": (FTYP, struct.pack(">I4s", 1, b"moov")),
    "keys that overrun": (FTYP, box(b"moov", full(b"meta", full(b"keys", b"\0\0\0\1", box(b"mdta", size=99))))),
    "keys without a count": (FTYP, box(b"moov", full(b"meta", box(b"keys", bytes(3))))),
    "a value that overruns": (FTYP, box(b"moov", full(b"meta", box(b"ilst", box(b"AIGC", box(b"data", size=99)))))),
    "a value of no size": (FTYP, box(b"moov", full(b"meta", box(b"ilst", box(b"AIGC", box(b"data", size=0)))))),
    "too many boxes": (FTYP, box(b"moov", box(b"free") * (MAX_BOXES + 1))),
    "too much metadata": (FTYP, xmp(bytes(5 * 2**20))),
}  # fmt: skip


def nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = box(b"moov", content)
    return content


HOSTILE["too deep"] = (FTYP, nested(2000))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(MediaError, match=r"made\.mp4"):
        read_marks(written(tmp_path, *HOSTILE[name]))


@pytest.mark.parametrize(
    "packet",
    [
        b"no XML",
        b"\xff\xfe<",
        b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><a>&d;</a>',
        '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16"),
        b"<a>" * 100_000,
    ],
)
def test_a_packet_that_is_no_plain_xml_says_nothing(tmp_path: Path, packet: bytes) -> None:
    marks = read_marks(written(tmp_path, FTYP, ONE, xmp(packet)))
    assert (marks.xmp, marks.source_types) == ((None,), ())
    assert [problem for problem in marks.problems if "digital source type" in problem]


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "[]",
        "{",
        "[" * 5000,
        json.dumps(dict.fromkeys(AIGC_FIELDS[1:], "")),
        json.dumps(dict.fromkeys([*AIGC_FIELDS, "More"], "")),
        json.dumps(dict.fromkeys(AIGC_FIELDS, 1)),
        ENTRY.replace('"Label":"1"', '"Label":"2"'),
    ],
)
def test_an_entry_that_does_not_say_what_it_must_is_a_problem(tmp_path: Path, entry: str) -> None:
    marks = read_marks(written(tmp_path, FTYP, box(b"moov", box(b"udta", meta((1, entry)))), xmp(xmp_packet())))
    (problem,) = marks.problems
    assert "AIGC" in problem


def test_tags_that_are_no_text_and_numbers_of_no_key_harm_nobody(tmp_path: Path) -> None:
    items = box(b"ilst", *(box(struct.pack(">I", number), text("x")) for number in (0, 3, 2**32 - 1)))
    odd = full(b"meta", full(b"keys", struct.pack(">I", 2**32 - 1), box(b"mdta", b"\xff\xfe")), items)
    assert read_marks(written(tmp_path, FTYP, box(b"moov", odd))).aigc == ()


def changed(content: bytes, seed: int) -> bytes:
    """One of many kinds of damage to the metadata, which stands before the picture."""
    dice = random.Random(seed)
    copy = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(copy))
        kinds: list[Callable[[], None]] = [
            lambda place=place: copy.__setitem__(place, dice.randrange(256)),
            lambda place=place: copy.__setitem__(slice(place, place + 4), dice.randbytes(4)),
            lambda place=place: copy.__delitem__(slice(place, place + dice.randint(1, 40))),
            lambda place=place: copy.__setitem__(slice(place, place), dice.randbytes(dice.randint(1, 40))),
        ]
        dice.choice(kinds)()
    return bytes(copy)


def test_damage_of_any_kind_is_told_or_read_over_and_nothing_else(tmp_path: Path) -> None:
    content = b"".join((FTYP, ONE, xmp(xmp_packet())))
    outcomes = set()
    for seed in range(1000):
        path = written(tmp_path, FTYP + changed(content[len(FTYP) :], seed))
        try:
            outcomes.add(bool(read_marks(path).problems))
        except MediaError:
            outcomes.add(None)
    assert outcomes == {True, False, None}


def test_files_that_are_not_there_or_no_media_are_named(tmp_path: Path) -> None:
    for name, content in (("empty.mp4", b""), ("list.mp4", b"#EXTM3U\n/etc/passwd\n"), ("a.mkv", b"\x1aE\xdf\xa3" * 9)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MediaError, match=name):
            read_marks(tmp_path / name)
    with pytest.raises(MediaError, match=r"absent\.mp4"):
        read_marks(tmp_path / "absent.mp4")
