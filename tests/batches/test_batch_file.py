"""Batch files: four formats, every bad row at once, identity by content."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.batches.batch_file import Batch, make_batch, read_batch, read_rows
from magi2.batches.rows import Row
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.errors import ConfigError, InputError
from magi2.inputs.readable import readable
from magi2.types import MAX_SEED, Expect, derive_seed
from tests.render_helpers import CONFIGS

PROFILES = {name: load_profile(name, CONFIGS) for name in ("tiny", "tiny-preview")}


def profile_of(name: str | None) -> Profile:
    if name not in (None, *PROFILES):
        raise ConfigError(f"unknown profile {name!r}")
    return PROFILES[name or "tiny"]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(folder: Path, name: str, content: str | bytes) -> Batch:
    return read_batch(write(folder, name, content), profile_of)


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(number, value) for number, value in enumerate(values, start=1)]


def batch_of(*values: dict[str, Any], folder: Path = Path()) -> Batch:
    return make_batch(rows(*values), profile_of, folder=folder)


def reason_of(*values: dict[str, Any], folder: Path = Path()) -> str:
    (bad,) = batch_of(*values, folder=folder).bad_rows
    return str(bad)


@pytest.fixture
def images(tmp_path: Path, golden: Path) -> Path:
    """A folder with two pictures in a folder below it, and one that is too long."""
    (tmp_path / "pictures").mkdir()
    for name in ("wide_160x90.png", "square_100.png", "pano_300x40.png"):
        shutil.copy(golden / "output" / "images" / name, tmp_path / "pictures" / name.partition("_")[2])
    return tmp_path


# -- formats -----------------------------------------------------------------------------------------------------------

FULL = [
    {
        "prompt": "ein Würfel – 骰子 🎲",
        "seed": 5,
        "profile": "tiny-preview",
        "priority": 2,
        "tags": "a, b",
        "name": "one",
    },
    {"prompt": 'two\nlines, "quoted"', "name": "two"},
]


def as_csv(values: Sequence[dict[str, Any]], line_end: str = "\n") -> str:
    out = io.StringIO(newline="")
    columns = sorted({key for row in values for key in row})
    writer = csv.DictWriter(out, columns, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(values)
    return out.getvalue()


def as_jsonl(values: Sequence[dict[str, Any]], line_end: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + line_end for row in values)


FILES = {
    "csv": ("a.csv", as_csv(FULL)),
    "csv with CRLF": ("a.csv", as_csv(FULL, "\r\n")),
    "csv with BOM": ("a.CSV", "\ufeff" + as_csv(FULL)),
    "jsonl": ("a.jsonl", as_jsonl(FULL)),
    "jsonl with CRLF": ("a.jsonl", as_jsonl(FULL, "\r\n")),
    "jsonl with BOM and blank lines": ("a.jsonl", "\ufeff\n" + as_jsonl(FULL, "\n\n  \n")),
    "jsonl without a last line end": ("a.jsonl", as_jsonl(FULL).rstrip()),
    "json": ("a.json", json.dumps(FULL)),
    "json with BOM": ("a.json", "\ufeff" + json.dumps(FULL, ensure_ascii=False, indent=2)),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_format_gives_the_same_clips(kind: str, tmp_path: Path) -> None:
    batch = read(tmp_path, *FILES[kind]).require_good()
    assert batch.clips == batch_of(*FULL).clips
    first, second = batch.clips
    assert (first.prompt, first.seed, first.profile_name) == ("ein Würfel – 骰子 🎲", 5, "tiny-preview")
    assert (first.names, first.tags, first.priority) == (("one",), ("a", "b"), 2)
    assert (second.prompt, second.profile_name, second.names) == ('two\nlines, "quoted"', "tiny", ("two",))


def test_bare_strings_are_prompts(tmp_path: Path) -> None:
    for name, content in (("a.json", '["one", "two"]'), ("a.jsonl", '"one"\n"two"\n')):
        assert [clip.prompt for clip in read(tmp_path, name, content).clips] == ["one", "two"]


def test_the_published_sample_list_is_read(images: Path) -> None:
    (images / "prompts").mkdir()
    write(images, "prompts/first.txt", "\ufeff  a heron\ntakes off \n")
    samples = [
        {"prompt_file": "prompts/first.txt", "image": "pictures/160x90.png"},
        {"prompt_file": "prompts/first.txt"},
        {"prompt": "an egret"},
    ]
    clips = read(images, "samples.json", json.dumps(samples)).require_good().clips
    assert [clip.prompt for clip in clips] == ["a heron\ntakes off", "a heron\ntakes off", "an egret"]
    assert [len(clip.figures) for clip in clips] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "a heron", r"unknown kind of batch file '.txt', known: .jsonl, .csv, .json"),
        ("a.jsonl", "", r"a.jsonl: holds no prompts"),
        ("a.jsonl", "\n \n", r"a.jsonl: holds no prompts"),
        ("a.csv", "prompt\n", r"a.csv: holds no prompts"),
        ("a.json", "[]", r"a.json: holds no prompts"),
        ("a.json", "{", r"a.json: unreadable: line 1: not JSON: Expecting property name"),
        ("a.json", "[" * 100_000, r"a.json: unreadable"),
        ("a.jsonl", b"\xff\xfe\x00", r"a.jsonl: unreadable: byte 2 is no UTF-16, in line 1"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_by_name(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, name, content))


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.jsonl: unreadable"):
        read_rows(tmp_path / "no.jsonl")
    with pytest.raises(InputError, match=r"folder.csv: unreadable"):
        (tmp_path / "folder.csv").mkdir()
        read_rows(tmp_path / "folder.csv")


# -- bad rows ----------------------------------------------------------------------------------------------------------


def test_all_bad_rows_are_listed_at_once_by_number(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "good"}',
        "{broken",
        "",
        '{"prompt": " "}',
        "7",
        '{"promt": "x"}',
        '{"prompt": "y", "seed": -1}',
    ]
    batch = read(tmp_path, "a.jsonl", "\n".join(lines))
    assert [clip.prompt for clip in batch.clips] == ["good"]
    assert [row.number for row in batch.bad_rows] == [2, 4, 5, 6, 7]
    with pytest.raises(InputError) as caught:
        batch.require_good()
    report = str(caught.value).splitlines()
    assert report[0] == "5 bad rows, nothing was started:"
    assert report[1].startswith("  line 2: not JSON: Expecting property name")
    assert report[2] == "  line 4: the prompt is empty"
    assert report[3] == "  line 5: is a int, not an object or a string"
    assert report[4] == "  line 6: unknown column 'promt' (did you mean 'prompt'?)"
    assert report[5].startswith("  line 7: seed is -1")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "the prompt is empty"),
        ({"prompt": None}, "the prompt is empty"),
        ({"prompt": 5}, "prompt is a int, not text"),
        ({"prompt": "x", "colour": "red"}, "unknown column 'colour'"),
        ({"prompt": "x", "colour": None}, "unknown column 'colour'"),
        ({"prompt": "\u200b"}, "the prompt shows nothing"),
        ({"prompt": "x\0"}, "the prompt holds U+0000"),
        ({"prompt": "x", "name": "\u2800\u200b"}, "the name shows nothing"),
        ({"prompt": "x", "tags": ["a", "\u200d"]}, "a tag shows nothing"),
        ({"prompt": "x", "tags": "a,\u200d"}, "a tag shows nothing"),
        ({"prompt": "x", "tags": True}, "tags is a bool, not text or a list of texts"),
        ({"prompt": "x", "tags": 5}, "tags is a int, not text"),
        ({"prompt": "x", "tags": {"a": "b"}}, "tags is a dict, not text"),
        ({"prompt": "x", "tags": ["a", None]}, "tags holds a NoneType, not text alone"),
        ({"prompt": "x", "tags": ["a", ["b"]]}, "tags holds a list, not text alone"),
        ({"prompt": "x", "tags": ["a", 5]}, "tags holds a int, not text alone"),
        ({"prompt": "x", "prompt_file": "x.txt"}, "gives both a prompt and a prompt_file"),
        ({"prompt": "\u200b", "prompt_file": "x.txt"}, "gives both a prompt and a prompt_file"),
        ({"prompt_file": "blank.txt"}, "prompt_file blank.txt shows nothing"),
        ({"prompt": '{"global_layer": {"a": 1, "a": 2}}'}, "the prompt gives two values for 'a'"),
        ({"prompt": "x", "image": '{"<Figure 1>": "a", "<Figure 1>": "b"}'}, "gives two values for '<Figure 1>'"),
        ({"prompt": "x", "image": {"<Figure 1>": "a", "Figure 1": "b"}}, "two images share a figure number"),
        ({"prompt": "x", "image": {"<Figure 1>": 5}}, "image gives a int for '<Figure 1>', not a path"),
        ({"prompt": "x", "image": {"<Figure 1>": None}}, "image gives a NoneType"),
        ({"prompt": "x", "Seed": 1}, "unknown column 'Seed' (did you mean 'seed'?)"),
        ({"prompt": "x", "seed": "1.5"}, "seed '1.5' is not a whole number"),
        ({"prompt": "x", "seed": 1.0}, "seed 1.0 is not a whole number"),
        ({"prompt": "x", "seed": True}, "seed True is not a whole number"),
        ({"prompt": "x", "seed": "²"}, "seed '²' is not a whole number"),
        ({"prompt": "x", "seed": "--5"}, "seed '--5' is not a whole number"),
        ({"prompt": "x", "seed": "9" * 5000}, "is not a whole number"),
        ({"prompt": "x", "seed": MAX_SEED + 1}, f"must be an integer from 0 to {MAX_SEED}"),
        ({"prompt": "x", "seed": "-1"}, "seed is -1"),
        ({"prompt": "x", "priority": "high"}, "priority 'high' is not a whole number"),
        ({"prompt": "x", "profile": "huge"}, "unknown profile 'huge'"),
        ({"prompt": "x", "profile": 7}, "profile is a int, not text"),
        ({"prompt": "x", "name": ["a"]}, "name is a list, not text"),
        ({"prompt": "half \ud83d", "seed": 1}, "half a surrogate pair"),
        ({"prompt": "x", "name": "half \ud83d"}, "half a surrogate pair"),
        ({"prompt_file": "absent.txt"}, "absent.txt: unreadable: No such file or directory (relative paths start at /"),
        ({"prompt_file": "latin.txt"}, "latin.txt: unreadable: byte 3 is no UTF-8, in line 1 (save it as UTF-8"),
        ({"prompt_file": "nul\0.txt"}, "unreadable"),
        ({"prompt_file": "."}, "unreadable"),
        ({"prompt": "x", "image": "absent.png"}, "absent.png: no such image (relative paths start at /"),
        ({"prompt": "x", "image": "nul\0.png"}, "not a readable image"),
        ({"prompt": "x", "image": "~nobody-of-this-name/a.png"}, "no such image"),
        ({"prompt": "x", "image": "."}, "not a readable image"),
        ({"prompt": "x", "image": ["a.png"]}, "image is a list, not a path or a map"),
        ({"prompt": "x", "image": 5}, "image is a int, not a path or a map"),
        ({"prompt": "x", "image": "{"}, "is not a JSON object"),
        ({"prompt": "x", "image": {}}, "the image map is empty"),
        ({"prompt": "<Figure 1> moves"}, "names <Figure 1> but has 0 image(s)"),
    ],
)
def test_a_bad_value_is_a_bad_row(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Café".encode("latin-1"))
    (tmp_path / "blank.txt").write_text("\u2060\u200b\u0301")
    found = reason_of({"prompt": "good"}, row, folder=tmp_path)
    assert found.startswith("line 2: ") and reason in found
    assert "\n" not in found


def test_what_is_wrong_with_many_rows_is_told_once(tmp_path: Path) -> None:
    rows = "".join(f"A cat {number},{number},\n" for number in range(1, 5_001))
    batch = read(tmp_path, "a.csv", f"prompt,seed\n{rows},7\n")
    with pytest.raises(InputError) as caught:
        batch.require_good()
    first, alike, other = str(caught.value).splitlines()
    assert first == "5001 bad rows, nothing was started:"
    assert alike.startswith("  line 2: has more cells") and "4999 more rows, the last in line 5001" in alike
    assert other == "  line 5002: the prompt is empty"


def test_rows_of_one_line_are_told_apart_by_their_place(tmp_path: Path) -> None:
    batch = read(tmp_path, "a.json", '[{"prompt": "x"}, {"prompt": ""}, {"prompt": "y"}, 7]')
    assert [clip.names for clip in batch.clips] == [("row 1",), ("row 3",)]
    assert [str(row) for row in batch.bad_rows] == [
        "line 1, item 2: the prompt is empty",
        "line 1, item 4: is a int, not an object or a string",
    ]
    assert len({row.number for row in batch.bad_rows}) == 2


def test_a_bad_byte_costs_its_row_in_a_file_that_is_utf8(tmp_path: Path) -> None:
    content = "prompt,seed\n骰子,1\n".encode() + b"caf\xe9,2\nA dog,3\n"
    batch = read(tmp_path, "a.csv", content)
    assert [clip.seed for clip in batch.clips] == [1, 3]
    assert [row.number for row in batch.bad_rows] == [3]


# -- seeds and identity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ["42", 42, " 42 ", "+42", "042"])
def test_seeds_may_be_text(seed: object) -> None:
    (clip,) = batch_of({"prompt": "x", "seed": seed}).clips
    assert clip.seed == 42


@pytest.mark.parametrize("seed", [None, ""])
def test_an_empty_seed_is_derived_and_zero_is_a_seed(seed: object) -> None:
    assert batch_of({"prompt": "x", "seed": seed}).clips[0].seed == derive_seed("x", None)
    assert batch_of({"prompt": "x", "seed": 0}, {"prompt": "y", "seed": MAX_SEED}).clips[0].seed == 0


def test_derived_seeds_follow_the_published_rule(images: Path) -> None:
    picture = images / "pictures" / "160x90.png"
    values = ({"prompt": " a heron "}, {"prompt": "a heron", "image": str(picture)})
    plain, pictured = batch_of(*values, folder=images).clips
    assert plain.seed == int.from_bytes(hashlib.sha256(b"a heron").digest()[:4], "big")
    message = b"a heron\0" + hashlib.sha256(picture.read_bytes()).digest()
    assert pictured.seed == int.from_bytes(hashlib.sha256(message).digest()[:4], "big")
    assert batch_of({"prompt": "a heron", "profile": "tiny-preview"}).clips[0].seed == plain.seed


def shows(text: str) -> bool:
    try:
        return "<Figure" not in text and bool(readable(text, "the prompt"))
    except InputError:
        return False


PROMPTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), min_size=1, max_size=30).filter(shows)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(PROMPTS, min_size=1, max_size=6, unique_by=lambda text: readable(text, "")),
    st.randoms(use_true_random=False),
)
def test_identity_never_depends_on_position(prompts: list[str], random: Any) -> None:
    shuffled = random.sample(prompts, len(prompts))
    batches = [batch_of(*({"prompt": prompt} for prompt in order)) for order in (prompts, shuffled)]
    first, second = ({clip.prompt: clip.clip_id for clip in batch.clips} for batch in batches)
    assert first == second and len(first) == len(prompts)


@settings(max_examples=40, deadline=None)
@given(st.lists(PROMPTS, min_size=1, max_size=5))
def test_any_text_survives_csv_and_jsonl(prompts: list[str]) -> None:
    wanted = {readable(prompt, "the prompt") for prompt in prompts}
    values = [{"prompt": prompt} for prompt in prompts]
    with TemporaryDirectory() as folder:
        for name, content in (("a.csv", as_csv(values)), ("a.json", json.dumps(values))):
            batch = read(Path(folder), name, content).require_good()
            assert {clip.prompt for clip in batch.clips} == wanted


def test_what_readers_see_as_the_same_is_one_clip_and_that_is_what_is_encoded(tmp_path: Path) -> None:
    (tmp_path / "cafe.txt").write_bytes("\ufeff A cafe\u0301\r\n\r\n".encode("utf-16-le"))
    written = ("A café", " A  café ", "A\u00a0cafe\u0301\n", "A\u200b ca\u00adfé", "\u2067A café\u2069")
    batch = batch_of(*({"prompt": prompt} for prompt in written), {"prompt_file": "cafe.txt"}, folder=tmp_path)
    (clip,) = batch.require_good().clips
    assert (clip.prompt, clip.seed) == ("A café", derive_seed("A café", None))
    assert clip.names == tuple(f"row {number}" for number in range(1, 7))


def test_names_and_tags_are_on_one_line_as_readers_see_them() -> None:
    (clip,) = batch_of({"prompt": "x", "name": " a\nb\u200b", "tags": ["a\u00a0 b", "e\u0301", " "]}).clips
    assert (clip.names, clip.tags) == (("a b",), ("a b", "é"))


def test_duplicates_become_one_clip_with_all_names_and_tags_and_the_higher_priority() -> None:
    batch = batch_of(
        {"prompt": "x", "name": "first", "tags": "a,b", "priority": 1},
        {"prompt": "y"},
        {"prompt": "x", "seed": derive_seed("x", None), "tags": ["b", " c "], "priority": 4},
        {"prompt": "x", "seed": 1},
        {"prompt": "x", "profile": "tiny-preview"},
    )
    assert [(clip.prompt, clip.names) for clip in batch.clips] == [
        ("x", ("first", "row 3")),
        ("y", ("row 2",)),
        ("x", ("row 4",)),
        ("x", ("row 5",)),
    ]
    assert (batch.clips[0].tags, batch.clips[0].priority) == (("a", "b", "c"), 4)


# -- images ------------------------------------------------------------------------------------------------------------


def test_relative_paths_start_at_the_batchs_folder(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("HOME", str(images))
    places = ("pictures/160x90.png", str(images / "pictures/100.png"), "~/pictures/100.png")
    batch = read(images, "batch.jsonl", as_jsonl([{"prompt": "x", "image": path} for path in places]))
    paths = [clip.figures[0].path for clip in batch.clips]
    assert paths == [images / "pictures/160x90.png", images / "pictures/100.png"]
    reason = f"image ~/pictures/100.png: no such image (relative paths start at {images})"
    assert [str(row) for row in batch.bad_rows] == [f"line 3: {reason}"]


def test_image_maps_name_several_figures_in_the_order_of_their_numbers(images: Path) -> None:
    mapping = {"<Figure 2>": "pictures/100.png", "<Figure 1>": "pictures/160x90.png"}
    prompt = "<Figure 1> meets <Figure 2>"
    for image in (mapping, json.dumps(mapping)):
        (clip,) = batch_of({"prompt": prompt, "image": image}, folder=images).clips
        assert [(figure.number, figure.path.name) for figure in clip.figures] == [(1, "160x90.png"), (2, "100.png")]
    assert "names <Figure 3>" in reason_of({"prompt": "<Figure 3>", "image": mapping}, folder=images)
    only_second = {"<Figure 2>": "pictures/100.png"}
    assert "start at <Figure 2>" in reason_of({"prompt": "x", "image": only_second}, folder=images)


def test_a_too_elongated_image_is_refused_for_the_profiles_size(images: Path) -> None:
    assert "too elongated" in reason_of({"prompt": "x", "image": "pictures/300x40.png"}, folder=images)


def test_images_count_by_content_not_by_name(images: Path) -> None:
    shutil.copy(images / "pictures/100.png", images / "same.png")
    batch = batch_of(
        {"prompt": "x", "image": "pictures/100.png"},
        {"prompt": "x", "image": "same.png"},
        {"prompt": "x", "image": "pictures/160x90.png"},
        folder=images,
    )
    assert [clip.names for clip in batch.clips] == [("row 1", "row 2"), ("row 3",)]


def test_what_a_row_expects_is_no_part_of_its_clip_and_the_more_demanding_row_counts() -> None:
    row = {"prompt": "a cat"}
    plain, asked = batch_of(row), batch_of({**row, "expect_motion": "any"})
    assert plain.clips[0].clip_id == asked.clips[0].clip_id
    assert (plain.clips[0].expect, asked.clips[0].expect) == (Expect(), Expect(motion="any"))
    both = batch_of({**row, "expect_motion": "any"}, {**row, "expect_motion": "rest", "expect_sound": "moving"})
    assert both.clips[0].expect == Expect("rest", "moving")
    assert "must be one of continuous, moving, rest, any" in reason_of({**row, "expect_sound": "loud"})
