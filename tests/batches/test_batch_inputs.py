"""What the rows of a batch may make the program read, and how much they may hold."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from magi2.batches import batch_file
from magi2.batches.batch_file import Batch, make_batch, read_batch, read_rows
from magi2.batches.rows import Row
from magi2.config.profiles import Profiles
from magi2.errors import InfrastructureError, InputError
from magi2.inputs.limits import (
    MAX_BATCH_BYTES,
    MAX_IMAGES,
    MAX_JSON_DEPTH,
    MAX_NAME_CHARS,
    MAX_NAMES,
    MAX_NUMBER_CHARS,
    MAX_PICTURE_BYTES,
    MAX_PROMPT_CHARS,
    MAX_ROWS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    MAX_TEXT_BYTES,
)
from magi2.media.image import Picture
from tests.render_helpers import CONFIGS

SECRET = "hunter2-of-the-worker"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A batch's folder. Outside, there is a secret as text, as a picture, as a profile and in the environment."""
    monkeypatch.setenv("A_SECRET", SECRET)
    outside = tmp_path / "outside"
    (tmp_path / "batch").mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "secret.yaml").write_text(f"{SECRET}: [")
    Image.new("RGB", (100, 100), "teal").save(outside / "secret.png")
    (tmp_path / "batch" / "P6.png").write_text(f"P6 {SECRET}")
    for name in ("secret.txt", "secret.png", "secret.yaml"):
        (tmp_path / "batch" / f"link-{name}").symlink_to(outside / name)
    (tmp_path / "batch" / "out").symlink_to(outside)
    (tmp_path / "batch" / "link-environ").symlink_to("/proc/self/environ")
    os.mkfifo(tmp_path / "batch" / "fifo")
    (tmp_path / "batch" / "folder").mkdir()
    with (tmp_path / "batch" / "long.txt").open("wb") as text, (tmp_path / "batch" / "large.png").open("wb") as picture:
        text.truncate(MAX_TEXT_BYTES + 1)
        picture.truncate(MAX_PICTURE_BYTES + 1)
    return tmp_path / "batch"


def read(folder: Path, *rows: Any, name: str = "night.jsonl") -> Batch:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_batch(path, Profiles(CONFIGS, "tiny"))


NEVER_READ = (
    *("/proc/self/environ", "/proc/self/cwd/x", "/dev/zero", "/dev/stdin", "/etc/passwd", "link-environ"),
    *("fifo", "folder", ".", "..", "~root/.profile", "nul\0", "x" * 5_000, "absent"),
)
FILES = {
    "prompt_file": (*NEVER_READ, "../outside/secret.txt", "{outside}/secret.txt", "link-secret.txt", "out/secret.txt"),
    "image": (
        *(*NEVER_READ, "../outside/secret.png", "{outside}/secret.png", "link-secret.png", "out/secret.png", "P6.png"),
        *("file:///etc/passwd", "http://127.0.0.1:9/a.png", "data:image/png;base64,AAAA", "large.png"),
    ),
    "images": (*NEVER_READ, "../outside/secret.png", "{outside}/secret.png", "link-secret.png", "out/secret.png"),
    "profile": (
        *("{outside}/secret.yaml", "../outside/secret.yaml", "link-secret.yaml", "/proc/self/environ", "/dev/zero"),
        *("secret.yaml", "../profiles/tiny", "tiny.yaml", "..", "~root/x.yaml", "nul\0", "x" * 5_000, "a\nb"),
    ),
}
CASES = [(column, value) for column, values in FILES.items() for value in values] + [("prompt_file", "long.txt")]


@pytest.mark.parametrize(("column", "value"), CASES, ids=lambda value: repr(value)[:40])
def test_a_row_reads_nothing_but_what_lies_in_its_folder_and_says_nothing_of_it(
    column: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    value = value.replace("{outside}", str(folder.parent / "outside"))
    row: dict[str, Any] = {"prompt": "a kite", column: value}
    if column == "prompt_file":
        del row["prompt"]
    if column == "images":
        row = {"prompt": "a kite", "image": {"<Figure 1>": value}}
    batch = read(folder, {"prompt": "a good row"}, row)
    assert [clip.prompt for clip in batch.clips] == ["a good row"]
    (bad,) = batch.bad_rows
    assert bad.number == 2 and SECRET not in bad.reason
    assert len(bad.reason) < 700 and bad.reason.isprintable()
    with pytest.raises(InputError, match="line 2: ") as caught:
        batch.require_good()
    assert SECRET not in str(caught.value)


def test_what_lies_in_the_folder_is_read_by_any_path(folder: Path) -> None:
    (folder / "folder" / "kite.txt").write_text("a kite")
    Image.new("RGB", (100, 100), "red").save(folder / "kite.png")
    (folder / "folder" / "link.png").symlink_to("../kite.png")
    texts = ("folder/kite.txt", "folder/../folder/kite.txt", str(folder / "folder" / "kite.txt"))
    pictures = ("kite.png", str(folder / "kite.png"), "folder/link.png")
    batch = read(folder, *({"prompt_file": t, "image": p} for t, p in zip(texts, pictures, strict=True)))
    (clip,) = batch.require_good().clips
    assert (clip.prompt, clip.names) == ("a kite", ("row 1", "row 2", "row 3"))


def test_the_folder_is_the_one_where_the_file_lies_after_links(folder: Path) -> None:
    (folder / "kite.txt").write_text("a kite")
    (folder / "night.jsonl").write_text('{"prompt_file": "kite.txt"}')
    entrance = folder.parent / "outside" / "entrance.jsonl"
    entrance.symlink_to(folder / "night.jsonl")
    (clip,) = read_batch(entrance, Profiles(CONFIGS, "tiny")).require_good().clips
    assert clip.prompt == "a kite"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_batch_that_is_no_regular_file_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "night.jsonl")
    with pytest.raises(InputError, match=r"inputs are not read from /dev|is no regular file|is a folder"):
        read_rows(tmp_path / "night.jsonl")


def test_a_batch_file_has_a_size(tmp_path: Path) -> None:
    with (tmp_path / "night.jsonl").open("wb") as stream:
        stream.truncate(MAX_BATCH_BYTES + 1)
    with pytest.raises(InputError, match=f"at most {MAX_BATCH_BYTES}"):
        read_rows(tmp_path / "night.jsonl")


@pytest.mark.parametrize("most", [1000, pytest.param(MAX_ROWS, marks=[pytest.mark.slow, pytest.mark.faults])])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_batch_has_so_many_rows_and_no_more(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_file, "MAX_ROWS", most)
    make = {
        "a.jsonl": lambda count: '"x"\n' * count,
        "a.json": lambda count: json.dumps(["x"] * count),
        "a.csv": lambda count: "prompt\n" + "x\n" * count,
    }[name]
    (tmp_path / name).write_text(make(most))
    assert len(read_rows(tmp_path / name)) == most
    (tmp_path / name).write_text(make(most + 1))
    with pytest.raises(InputError, match=f"has more than {most} rows"):
        read_rows(tmp_path / name)


LIMITS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "prompt": (lambda size: {"prompt": "x" * size}, MAX_PROMPT_CHARS),
    "name": (lambda size: {"prompt": "x", "name": "n" * size}, MAX_NAME_CHARS),
    "tags": (lambda size: {"prompt": "x", "tags": [str(n) for n in range(size)]}, MAX_TAGS),
    "tags in text": (lambda size: {"prompt": "x", "tags": ",".join(str(n) for n in range(size))}, MAX_TAGS),
    "tag": (lambda size: {"prompt": "x", "tags": ["t" * size]}, MAX_TAG_CHARS),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_row_holds_so_much_and_no_more(case: str, tmp_path: Path) -> None:
    make, limit = LIMITS[case]
    read(tmp_path, make(limit)).require_good()
    (bad,) = read(tmp_path, make(limit + 1)).bad_rows
    assert f"has {limit + 1} " in bad.reason and f"at most {limit}" in bad.reason


def test_a_clip_of_many_rows_has_so_many_tags_and_names_and_no_more(tmp_path: Path) -> None:
    tags = read(tmp_path, *({"prompt": "x", "tags": str(n)} for n in range(MAX_TAGS + 2)))
    assert len(tags.clips[0].tags) == MAX_TAGS
    assert [row.number for row in tags.bad_rows] == [MAX_TAGS + 1, MAX_TAGS + 2]
    names = read(tmp_path, *({"prompt": "x"} for _ in range(MAX_NAMES + 1)))
    assert len(names.clips[0].names) == MAX_NAMES
    assert [row.number for row in names.bad_rows] == [MAX_NAMES + 1]


def test_a_clip_has_so_many_images_and_no_more(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    maps = ({f"<Figure {n}>": "a.png" for n in range(1, count + 1)} for count in (MAX_IMAGES, MAX_IMAGES + 1))
    batch = read(tmp_path, *({"prompt": "x", "image": figures} for figures in maps))
    assert len(batch.clips[0].figures) == MAX_IMAGES
    assert f"has {MAX_IMAGES + 1} images, at most {MAX_IMAGES}" in batch.bad_rows[0].reason


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "x", "seed": ' + "9" * 1_000_000 + "}",
        '{"prompt": "x", "seed": 1e999}',
        '{"prompt": "x", "seed": NaN}',
        '{"prompt": "x", "tags": ' + "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1) + "}",
        "[" * 100_000,
        {"prompt": "x", "seed": "9" * 1_000_000},
        {"prompt": "x", "seed": [["s"] * 100] * 100},
        {"prompt": "x", "c" * 1_000_000: 1},
        {"prompt": "x", "c\n\x1b[31m": 1},
        {"prompt": "x", "image": {f"<Figure {'9' * 5_000}>": "a.png"}},
        {"prompt": "x", "image": '{"<Figure 1>": ' * 5_000},
    ],
    ids=lambda row: str(row)[:40],
)
def test_a_monstrous_row_is_one_short_bad_row(row: Any, tmp_path: Path) -> None:
    batch = read(tmp_path, {"prompt": "good"}, row)
    (bad,) = batch.bad_rows
    assert bad.number == 2 and len(bad.reason) < 500 and bad.reason.isprintable()


def test_the_longest_number_is_still_one(tmp_path: Path) -> None:
    (bad,) = read(tmp_path, '{"prompt": "x", "seed": ' + "9" * MAX_NUMBER_CHARS + "}").bad_rows
    assert "seed is 999" in bad.reason


def test_a_figure_token_with_a_monstrous_number_is_text_like_any_other(tmp_path: Path) -> None:
    prompt = f"<Figure {'9' * 5_000}> moves"
    assert read(tmp_path, {"prompt": prompt}).require_good().clips[0].prompt == prompt


def test_the_bytes_that_are_decoded_are_those_that_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is exchanged while it is decoded: the clip's digest is that of what was decoded."""
    import hashlib

    from magi2.batches import pictures as module

    path = tmp_path / "a.png"
    Image.new("RGB", (100, 100), "red").save(path)
    content, check = path.read_bytes(), module.load_reference

    def exchange(*arguments: Any) -> Picture:
        picture = check(*arguments)
        Image.new("RGB", (100, 100), "blue").save(path)
        return picture

    monkeypatch.setattr(module, "load_reference", exchange)
    (clip,) = read(tmp_path, {"prompt": "x", "image": "a.png"}).require_good().clips
    assert clip.figures[0].sha256 == hashlib.sha256(content).hexdigest()


def test_a_disk_that_fails_makes_no_row_bad(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "prompt.txt").write_text("A cat sleeps")
    profiles, rows = Profiles(CONFIGS, "tiny"), [Row(1, {"prompt_file": "prompt.txt"})]
    profiles(None)

    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(InfrastructureError, match=r"prompt\.txt: Input/output error"):
        make_batch(rows, profiles, folder=folder)
