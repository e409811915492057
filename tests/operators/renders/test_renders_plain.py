"""The plain pages: everything is there, and no text of anybody becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magi2.batches.refused import RefusedBatch
from magi2.catalog import Actor
from magi2.jobs.recorder import CatalogRecorder
from magi2_airflow.renders.html import Markup, element, page
from tests.operators.renders.renders_site import BATCH, HOSTILE, LONG, Site, client

KNOWN = {
    *("html", "head", "meta", "title", "link", "body", "h1", "h2", "nav", "p", "a", "table", "tr", "th", "td"),
    *("ul", "li", "div", "span", "img", "video", "dl", "dt", "dd"),
}


class Seen(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, attribute: str) -> list[str | None]:
        return [attributes[attribute] for name, attributes in self.tags if name == tag and attribute in attributes]


@pytest.fixture(
    params=["/", f"/batches/{BATCH}", *(f"/batches/{BATCH}/clips/{name}" for name in ("hostile", "long", "fox"))]
)
def seen(request: pytest.FixtureRequest, site: Site, viewer: TestClient) -> Seen:
    start, slash, name = request.param.rpartition("/clips/")
    answer = viewer.get(f"{start}/clips/{site.id(name)}" if slash else request.param)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "script" not in policy and "unsafe" not in policy
    return Seen(answer.text)


def test_hostile_text_is_shown_and_is_no_markup(seen: Seen) -> None:
    assert {tag for tag, _ in seen.tags} <= KNOWN
    attributes = {name for _, attributes in seen.tags for name in attributes}
    assert not {name for name in attributes if name.startswith("on") or name in ("style", "srcdoc")}
    addresses = [*seen.all("a", "href"), *seen.all("img", "src"), *seen.all("video", "src"), *seen.all("link", "href")]
    assert addresses and all(address and address.startswith("/") for address in addresses)


def test_batches_lead_to_clips_and_clips_to_their_files(site: Site, viewer: TestClient) -> None:
    batches = Seen(viewer.get("/").text)
    assert f"/batches/{BATCH}" in batches.all("a", "href") and HOSTILE in batches.text
    batch = Seen(viewer.get(f"/batches/{BATCH}").text)
    assert f"/batches/{BATCH}/clips/{site.id('fox')}" in batch.all("a", "href")
    assert f"/media/{site.key('fox')}/thumbnail.webp" in batch.all("img", "src")
    assert "failed in preview: a rank was lost" in batch.text
    clip = Seen(viewer.get(f"/batches/{BATCH}/clips/{site.id('cat')}").text)
    assert clip.all("video", "src") == [f"/media/{site.key('cat')}/clip.mp4"]
    assert f"/images/{BATCH}/{site.id('cat')}/1" in clip.all("img", "src")
    assert f"a caption of cat {HOSTILE}" in clip.text and "node1" in clip.text
    long = Seen(viewer.get(f"/batches/{BATCH}/clips/{site.id('long')}").text)
    assert LONG in long.text


def test_what_a_batch_cost_and_may_cost_is_told(own_site: Site) -> None:
    own_site.catalog.control.set_budget(BATCH, 1234.5, by=Actor("ann", "ann"))
    for path in ("/", f"/batches/{BATCH}"):
        assert re.search(r"accelerator-seconds, cost \d+\.\d\d EUR, budget 1,234\.50 EUR", client().get(path).text)


def test_pages_of_a_batch_keep_their_filter(site: Site, viewer: TestClient) -> None:
    first = Seen(viewer.get(f"/batches/{BATCH}?state=done&limit=3").text)
    assert "1 to 3 of 4" in first.text
    (further,) = [each for each in first.all("a", "href") if each and "offset=3" in each]
    assert further == f"/batches/{BATCH}?state=done&limit=3&offset=3"
    second = Seen(viewer.get(further).text)
    assert "4 to 4 of 4" in second.text
    assert f"/batches/{BATCH}?state=done&limit=3&offset=0" in second.all("a", "href")


def test_links_follow_where_the_app_is_mounted(site: Site, viewer: TestClient) -> None:
    viewer.app.root_path = ""  # type: ignore[attr-defined]
    mounted = TestClient(viewer.app, root_path="/air/renders", headers=dict(viewer.headers))
    seen = Seen(mounted.get(f"/air/renders/batches/{BATCH}/clips/{site.id('fox')}").text)
    assert seen.all("video", "src") == [f"/air/renders/media/{site.key('fox')}/clip.mp4"]
    assert any(each and each.startswith("/air/plugin/renders?batch=") for each in seen.all("a", "href"))
    clip = mounted.get(f"/air/renders{site.path('fox')}").json()
    assert clip["media"]["poster"] == f"/air/renders/media/{site.key('fox')}/poster.jpg"


def test_a_remote_store_may_show_its_media_and_nothing_else() -> None:
    policy = page("t", "/renders", "https://s3.example:9000").headers["content-security-policy"]
    assert "img-src 'self' https://s3.example:9000; media-src 'self' https://s3.example:9000" in policy
    assert "style-src 'self';" in policy


def test_only_markup_made_here_is_markup() -> None:
    assert element("p", "<b>", Markup("<i>")) == "<p>&lt;b&gt;<i></p>"
    assert element("img", alt='"><script>', src=None) == '<img alt="&quot;&gt;&lt;script&gt;">'


def test_batch_that_was_refused_says_why(own_site: Site) -> None:
    recorder = CatalogRecorder(own_site.deployment.store, lambda: own_site.catalog)
    refused = RefusedBatch("night", "night.json", {0: "unreadable: <line 1>", 7: "the prompt is empty"})
    recorder.on_refused(refused)
    text = client().get(f"/batches/{refused.batch_id}").text
    assert "unreadable: &lt;line 1&gt;" in text and "row 7" in text and "the file" in text
    assert "report.md" not in text
    listed = client().get("/api/batches").json()["batches"]
    assert refused.batch_id in [batch["batch_id"] for batch in listed]
