"""Files and pictures: those the catalog names, by ranges or by a link, and nothing else of disk or store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magi2.catalog import RunState
from magi2.types import StageName
from magi2_airflow.mount import STATIC
from magi2_airflow.renders.bundle import TYPES
from magi2_airflow.renders.media import LINK_LIFE, picture_type
from tests.operators.renders.renders_site import BATCH, PNG, Site, client, finish, publish


def test_a_player_can_seek(site: Site, viewer: TestClient) -> None:
    address = f"/media/{site.key('fox')}/clip.mp4"
    whole = viewer.get(address)
    assert (whole.content, whole.headers["content-type"]) == (bytes(range(256)), "video/mp4")
    assert whole.headers["accept-ranges"] == "bytes"
    for asked, expected in (
        ("bytes=10-19", range(10, 20)),
        ("bytes=250-", range(250, 256)),
        ("bytes=-6", range(250, 256)),
    ):
        part = viewer.get(address, headers={"Range": asked})
        assert (part.status_code, part.content) == (206, bytes(expected))
        assert part.headers["content-range"] == f"bytes {expected.start}-{expected.stop - 1}/256"
    assert viewer.get(address, headers={"Range": "bytes=900-"}).status_code == 416


def test_a_browser_can_ask_what_there_is(site: Site, viewer: TestClient) -> None:
    head = viewer.head(f"/media/{site.key('fox')}/clip.mp4")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "256", b"")
    assert "content-disposition" not in head.headers
    saved = viewer.get(f"/media/{site.key('fox')}/clip.mp4?download=1")
    assert saved.headers["content-disposition"] == f'attachment; filename="{site.key("fox")[:12]}-clip.mp4"'


def test_pictures_are_pictures(site: Site, viewer: TestClient) -> None:
    for name in ("poster.jpg", "contact_sheet.jpg"):
        answer = viewer.get(f"/media/{site.key('fox')}/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"].startswith("private")


@pytest.mark.parametrize(
    "path",
    [
        "/media/{key}/manifest.json",
        "/media/{key}/..%2Fmanifest.json",
        "/media/{key}/%2e%2e/manifest.json",
        "/media/{key}/clip.mp4%00.jpg",
        "/media/{caption}/caption.json",
        "/media/{caption}/clip.mp4",
        "/media/{zeros}/clip.mp4",
        "/media/..%2F..%2Fetc/passwd",
        "/media/{key}/../../../../etc/passwd",
        "/images/{batch}/{cat}/2",
        "/images/{batch}/{fox}/1",
        "/images/{batch}/{cat}/..%2F1",
        "/images/{batch}/..%2F..%2Fimages/1",
        "/static/..%2Fapp.py",
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/%2Fetc%2Fpasswd",
        "/static/",
        "/documents/batches/{batch}/batch.json",
        "/documents/batches/{batch}/results/..%2Fbatch.json",
        "/documents/batches/{batch}/results/0.secret.json",
        "/documents/batches/..%2F..%2Fartifacts/report.json",
        "/documents/batches/{absent}/report.json",
    ],
)
def test_nothing_leads_out_of_what_the_catalog_names(site: Site, viewer: TestClient, path: str) -> None:
    for name in ("batch.json", "report.json"):
        site.deployment.store.put_document(f"batches/{'e' * 16}/{name}", b"{}")
    site.deployment.store.put_document(f"batches/{BATCH}/batch.json", b"{}")
    values = {"key": site.key("fox"), "batch": BATCH, "absent": "e" * 16, "zeros": "0" * 64}
    caption = site.deployment.overview.artifact_keys(BATCH, site.id("fox"))[StageName.ENHANCE]
    clips = {"cat": site.id("cat"), "fox": site.id("fox")}
    assert viewer.get(path.format(**values, **clips, caption=caption)).status_code in (404, 422)


def test_what_the_store_lost_is_not_there(own_site: Site) -> None:
    own_site.deployment.store.remove("mux", own_site.key("fox"))
    assert client().get(f"/media/{own_site.key('fox')}/clip.mp4").status_code == 404
    assert client().get(f"/media/{own_site.key('cat')}/clip.mp4").status_code == 200


def test_a_file_that_an_artifact_does_not_have_is_not_there(own_site: Site) -> None:
    bare = publish(own_site.deployment.store, "mux", {"clip.mp4": b"x"}, seed=1, label="bare")  # type: ignore[arg-type]
    own_site.catalog.artifacts.index([bare])
    finish(own_site.catalog, own_site.id("long"), StageName.MUX, RunState.MADE, 1.0, artifact_key=bare.key)
    assert client().get(f"/media/{bare.key}/clip.mp4").status_code == 200
    assert client().get(f"/media/{bare.key}/poster.jpg").status_code == 404


def test_a_remote_store_is_reached_by_a_link_that_lives_minutes(
    site: Site, viewer: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def link(store: object, stage: str, key: str, name: str, *, expires: timedelta, save_as: str | None) -> str:
        asked.append((stage, key, name, expires, save_as))
        return f"https://s3.example/{key}/{name}?signed"

    monkeypatch.setattr(type(site.deployment.store), "link", link)
    address = f"/media/{site.key('fox')}/clip.mp4"
    answer = viewer.get(address)
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        f"https://s3.example/{site.key('fox')}/clip.mp4?signed",
    )
    assert asked == [("mux", site.key("fox"), "clip.mp4", LINK_LIFE, None)]
    viewer.get(f"{address}?download=1")
    assert asked.pop()[-1] == f"{site.key('fox')[:12]}-clip.mp4"
    assert timedelta(minutes=1) <= LINK_LIFE <= timedelta(minutes=30)
    head = viewer.head(address)
    assert (head.status_code, head.headers["content-length"], head.headers["accept-ranges"]) == (200, "256", "bytes")


def test_the_reference_image_of_a_clip_is_shown(own_site: Site) -> None:
    address, store = f"/images/{BATCH}/{own_site.id('cat')}/1", own_site.deployment.store
    answer = client().get(address)
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    store.put_document(f"images/{'c' * 64}", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    assert client().get(address).status_code == 404


def test_only_pictures_of_pixels_are_pictures() -> None:
    assert picture_type(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert picture_type(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert picture_type(b"GIF89a") == "image/gif"
    for content in (b"", b"<svg/>", b"<html>", b"RIFF\0\0\0\0WAVE", b"%PDF-1.7"):
        assert picture_type(content) is None


def test_the_bundle_is_script_to_the_browser_and_asked_for_once(viewer: TestClient) -> None:
    for path in STATIC.iterdir():
        answer = viewer.get(f"/static/{path.name}")
        assert answer.headers["content-type"].partition(";")[0] == TYPES[path.suffix]
        again = viewer.get(f"/static/{path.name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_documents_of_a_batch_are_served(own_site: Site) -> None:
    store = own_site.deployment.store
    store.put_document(f"batches/{BATCH}/report.md", b"# <script>")
    store.put_document(f"batches/{BATCH}/results/0.mux.json", b"{}")
    report = client().get(f"/documents/batches/{BATCH}/report.md")
    assert (report.text, report.headers["content-type"]) == ("# <script>", "text/plain; charset=utf-8")
    assert client().get(f"/documents/batches/{BATCH}/results/0.mux.json").json() == {}
    assert client().get(f"/documents/batches/{BATCH}/report.json").status_code == 404
