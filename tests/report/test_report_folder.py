"""A batch's report as a folder to share: complete, harmless, and nobody else's folder."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

import pytest
from minio.credentials import StaticProvider

from magi2.artifacts.address import open_store
from magi2.artifacts.local import LocalStore
from magi2.artifacts.s3 import S3Store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import BadRow
from magi2.batches.failures import save_failure
from magi2.catalog.cost import BatchCost
from magi2.config.price import Price
from magi2.errors import BudgetSpentError, ImageError, InputError
from magi2.report.build import build_report, save_report
from magi2.report.export import export_report
from magi2.types import Clip, StageName
from tests.real_servers import seaweedfs
from tests.report_samples import NO_REFINER, clip, deliver, planned, rendered

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><b>bold",
    "\u202eright to left",
    '=HYPERLINK("http://127.0.0.1","click")',
    "word " * 2000,
    "NUL \0 and bell \a",
]


class Page(HTMLParser):
    """What is in a page: tags, attributes and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data

    def values(self, tag: str, name: str) -> list[str]:
        return [value for found, attribute, value in self.attributes if (found, attribute) == (tag, name)]


def rows_of(folder: Path) -> list[dict[str, str]]:
    text = (folder / "clips.csv").read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_page_shows_every_clip_with_its_files_beside_it(store: LocalStore, tmp_path: Path) -> None:
    clips = [clip(1), clip(2, NO_REFINER), clip(3)]
    plan = rendered(store, clips, {clips[2].clip_id: (StageName.PREVIEW, ImageError("no such picture"))})
    made = export_report(store, plan.batch_id, tmp_path / "out", clips="copy")
    page = Page(made.page)
    short = [each.short_id for each in clips[:2]]
    assert page.values("video", "src") == [f"clips/{each}.mp4" for each in short]
    assert page.values("img", "src") == [f"posters/{each}.jpg" for each in short]
    for each in clips[:2]:
        copied = tmp_path / "out" / "clips" / f"{each.short_id}.mp4"
        assert copied.read_bytes() == f"clip.mp4 of {each.clip_id}".encode()
    assert "no such picture" in page.words and "made, 2.0 s" in page.words
    assert (made.clips, made.missing) == (3, ())


def test_json_and_csv_say_the_same_as_the_page(store: LocalStore, tmp_path: Path) -> None:
    clips = [clip(1), clip(2)]
    plan = rendered(store, clips)
    seconds = dict.fromkeys((each.clip_id for each in clips), 1800.0)
    cost = BatchCost(Price(2.0, "EUR"), seconds, {StageName.PREVIEW: 3600.0})
    export_report(store, plan.batch_id, tmp_path / "out", clips="copy", cost=cost)
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (content["cost"], content["currency"], content["accelerator_seconds"]) == (2.0, "EUR", 3600.0)
    assert [(each["video"], each["cost"], each["seconds"]) for each in content["done"]] == [
        (f"clips/{each.short_id}.mp4", 1.0, 12.0) for each in clips
    ]
    rows = rows_of(tmp_path / "out")
    assert [(row["clip_id"], row["state"], row["cost"], row["preview_seconds"]) for row in rows] == [
        (each.clip_id, "done", "1.0", "2.0") for each in clips
    ]
    assert "2.00 EUR" in Page(tmp_path / "out" / "index.html").words


def test_hostile_text_is_no_markup_and_no_formula(store: LocalStore, tmp_path: Path) -> None:
    clips = [clip(number, prompt=text) for number, text in enumerate(HOSTILE)]
    plan = rendered(store, clips, {clips[0].clip_id: (StageName.PREVIEW, ImageError("<script>alert(2)</script>"))})
    export_report(store, plan.batch_id, tmp_path / "out", clips="copy")
    page = Page(tmp_path / "out" / "index.html")
    assert not {"script", "b", "iframe", "form", "object"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert len(page.values("img", "src")) == len(clips) - 1
    for text in ("<script>alert(1)</script> 0", "<script>alert(2)</script>", "</style></title><b>bold 2"):
        assert text in page.words
    assert "word " * 2000 in page.words  # whole in the clip's own place
    assert "\0" not in page.words and "\a" not in page.words
    prompts = {row["clip_id"]: row["prompt"] for row in rows_of(tmp_path / "out")}
    assert prompts[clips[4].clip_id].startswith("'=HYPERLINK")
    assert not [text for text in prompts.values() if text.startswith(("=", "+", "-", "@"))]
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {each["prompt"] for each in stored["done"]} == {each.prompt for each in clips[1:]}


HIDDEN = ("\u200b=", "\ufeff=", "\u00a0=", "\u2060 +", "\u3000@", "\u202e=", "\u3164=", '"=', "\u00ad-", "\ufe0f=")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", " =", "\r\n=", "＝", *HIDDEN])
def test_no_cell_of_the_table_begins_like_a_formula(store: LocalStore, tmp_path: Path, start: str) -> None:
    hostile = Clip(f"{start}1+1", 5, NO_REFINER.name, NO_REFINER.digest(), names=(f"{start}2",), tags=(f"{start}3",))
    plan = rendered(store, [hostile])
    export_report(store, plan.batch_id, tmp_path / "out", clips="none")
    (row,) = rows_of(tmp_path / "out")
    assert all(row[column].startswith("'") for column in ("prompt", "names", "tags"))
    assert row["seed"] == "5"


@pytest.mark.parametrize("parting", [";", "; ", ";\u200b", "\t", "|", "\n", ';"'])
def test_no_cell_begins_like_a_formula_to_a_spreadsheet_with_another_separator(
    store: LocalStore, tmp_path: Path, parting: str
) -> None:
    prompt = f"a bird{parting}=HYPERLINK(1)"
    plan = rendered(store, [Clip(prompt, 5, NO_REFINER.name, NO_REFINER.digest())])
    export_report(store, plan.batch_id, tmp_path / "out", clips="none")
    (row,) = rows_of(tmp_path / "out")
    assert row["prompt"] == prompt.replace(parting[0], f"{parting[0]}'", 1)


def test_text_without_a_formula_is_written_as_it_is(store: LocalStore, tmp_path: Path) -> None:
    prompt = "one-eyed cats; dogs = friends\n1 + 1 | 2 @ 3"
    plan = rendered(store, [Clip(prompt, 5, NO_REFINER.name, NO_REFINER.digest())])
    export_report(store, plan.batch_id, tmp_path / "out", clips="none")
    assert rows_of(tmp_path / "out")[0]["prompt"] == prompt


def test_text_written_right_to_left_stays_in_its_place(store: LocalStore, tmp_path: Path) -> None:
    plan = rendered(store, [clip(1, prompt="\u202eabc")])
    export_report(store, plan.batch_id, tmp_path / "out", clips="none")
    text = (tmp_path / "out" / "index.html").read_text()
    assert text.count("\u202e") == text.count("<bdi>\u202e")


def test_page_loads_nothing_but_its_own_files_and_runs_no_script(store: LocalStore, tmp_path: Path) -> None:
    plan = rendered(store, [clip(1)])
    made = export_report(store, plan.batch_id, tmp_path / "out", clips="copy")
    page = Page(made.page)
    (policy,) = [value for value in page.values("meta", "content") if "default-src" in value]
    assert policy.startswith("default-src 'none'; img-src 'self' file:; media-src 'self' file:; style-src 'sha256-")
    addresses = [value for _, name, value in page.attributes if name in ("src", "href")]
    assert all(not address.startswith("/") and ":" not in address for address in addresses)
    assert {address for address in addresses if not (made.page.parent / address).is_file()} == set()


def test_a_folder_of_somebody_else_is_left_alone(store: LocalStore, tmp_path: Path) -> None:
    plan, other = rendered(store, [clip(1)]), rendered(store, [clip(2)])
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no report of batch"):
        export_report(store, plan.batch_id, folder, clips="none")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").unlink()
    export_report(store, other.batch_id, folder, clips="none")
    with pytest.raises(InputError, match=f"holds no report of batch {plan.batch_id}"):
        export_report(store, plan.batch_id, folder, clips="none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        export_report(store, plan.batch_id, tmp_path / "file", clips="none")


def test_an_earlier_report_of_the_batch_is_brought_up_to_date(store: LocalStore, tmp_path: Path) -> None:
    plan, folder = rendered(store, [clip(1)]), tmp_path / "out"
    export_report(store, plan.batch_id, folder, clips="copy")
    (copied,) = (folder / "clips").iterdir()
    copied.write_bytes(b"damaged")
    export_report(store, plan.batch_id, folder, clips="copy")
    assert copied.read_bytes() == f"clip.mp4 of {clip(1).clip_id}".encode()
    before = copied.stat().st_mtime_ns
    export_report(store, plan.batch_id, folder, clips="copy")
    assert copied.stat().st_mtime_ns == before  # equal files are not copied again
    export_report(store, plan.batch_id, folder, clips="none")
    assert list((folder / "clips").iterdir()) == []
    assert Page(folder / "index.html").values("video", "src") == []


def test_linked_clips_are_read_from_the_store(store: LocalStore, tmp_path: Path) -> None:
    plan = rendered(store, [clip(1)])
    export_report(store, plan.batch_id, tmp_path / "out", clips="link")
    (address,) = Page(tmp_path / "out" / "index.html").values("video", "src")
    assert address.startswith("file:///")
    assert urlopen(address).read() == f"clip.mp4 of {clip(1).clip_id}".encode()
    assert list((tmp_path / "out" / "clips").iterdir()) == []


def test_a_clip_whose_file_is_gone_or_damaged_is_named_and_the_others_are_shown(
    store: LocalStore, tmp_path: Path
) -> None:
    plan = rendered(store, [clip(1), clip(2), clip(3)])
    keys = [done.key or "" for done in build_report(store, plan.batch_id).done]
    store.remove(StageName.MUX, keys[0])
    (path,) = (store.root / "artifacts/mux" / keys[1][:2] / keys[1]).glob("clip.*.mp4")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[::-1])
    made = export_report(store, plan.batch_id, tmp_path / "out", clips="copy")
    assert made.missing == (clip(1).clip_id, clip(2).clip_id)
    page = Page(made.page)
    assert "is not in the store any more" in page.words and "SHA-256" in page.words
    assert page.values("video", "src") == [f"clips/{clip(3).short_id}.mp4"]


def test_a_batch_that_runs_is_said_to_run_and_one_that_ended_keeps_its_time(store: LocalStore, tmp_path: Path) -> None:
    plan, folder = rendered(store, [clip(1)]), tmp_path / "out"
    export_report(store, plan.batch_id, folder, clips="none")
    assert "has not ended" in Page(folder / "index.html").words
    save_report(build_report(store, plan.batch_id).model_copy(update={"seconds": 4211.0}), store)
    export_report(store, plan.batch_id, folder, clips="none")
    page = Page(folder / "index.html")
    assert "has not ended" not in page.words and "1 h 10 min" in page.words


def test_clips_finished_before_and_refused_rows_are_shown(store: LocalStore, tmp_path: Path) -> None:
    deliver(store, clip(1), tmp_path)
    plan = planned(store, [clip(1)], BadRow(7, "the prompt is empty"))
    export_report(store, plan.batch_id, tmp_path / "out", clips="none")
    words = Page(tmp_path / "out" / "index.html").words
    assert "Done (1)" in words and "before this batch" in words
    assert "row 7" in words and "the prompt is empty" in words
    assert [(row["state"], row["reused"]) for row in rows_of(tmp_path / "out")] == [("failed", "no"), ("done", "yes")]


def test_clips_that_were_not_rendered_for_lack_of_budget_are_no_failures(store: LocalStore, tmp_path: Path) -> None:
    plan = planned(store, [clip(1), clip(2)])
    save_failure(store, plan.batch_id, 0, StageName.ENHANCE, BudgetSpentError("the budget of 5.00 EUR is spent"))
    cost = BatchCost(Price(2.0, "EUR"), {}, {StageName.PREVIEW: 9000.0})
    export_report(store, plan.batch_id, tmp_path / "out", clips="none", cost=cost)
    words = Page(tmp_path / "out" / "index.html").words
    assert "Not rendered: the budget was spent" in words and "Failures" not in words and "5.00 EUR" in words
    assert [row["state"] for row in rows_of(tmp_path / "out")] == ["over_budget", "over_budget"]


def test_an_unknown_batch_makes_no_folder(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not in the store"):
        export_report(store, "0" * 16, tmp_path / "out", clips="copy")
    assert not (tmp_path / "out").exists()


@pytest.mark.servers
def test_a_bucket_gives_copies_or_links_that_last_a_week(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with seaweedfs(tmp_path / "server") as server:
        credentials = StaticProvider(server.access_key, server.secret_key)
        store: ArtifactStore = S3Store(
            bucket=server.bucket,
            endpoint=server.endpoint,
            prefix="night",
            credentials=credentials,
            scratch=tmp_path / "scratch",
            public_endpoint=server.endpoint.replace("127.0.0.1", "localhost"),
        )
        plan = rendered(store, [clip(1)])
        content = f"clip.mp4 of {clip(1).clip_id}".encode()
        export_report(store, plan.batch_id, tmp_path / "copies", clips="copy")
        assert (tmp_path / "copies" / "clips" / f"{clip(1).short_id}.mp4").read_bytes() == content
        export_report(store, plan.batch_id, tmp_path / "links", clips="link")
        page = Page(tmp_path / "links" / "index.html")
        (address,) = page.values("video", "src")
        assert urlopen(address).read() == content
        assert "X-Amz-Expires=604800" in address
        (policy,) = [value for value in page.values("meta", "content") if "default-src" in value]
        assert f"media-src 'self' file: {store.link_origin};" in policy


def test_links_to_a_server_without_a_public_endpoint_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    plan = rendered(LocalStore(tmp_path / "store"), [clip(1)])
    bucket = open_store("s3://clips?endpoint=http://s3:8333", scratch=tmp_path)
    with pytest.raises(InputError, match="--clips link: browsers have no way to the server of s3://clips/") as caught:
        export_report(bucket, plan.batch_id, tmp_path / "out", clips="link")
    assert "--clips copy" in str(caught.value.hint) and "public_endpoint=" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
