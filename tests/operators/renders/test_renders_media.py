"""Files and pictures: those the catalog names, by ranges or by a link, and nothing else of disk or store."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magi2.artifacts import Payload, open_store
from magi2.catalog import RunState
from magi2.errors import CorruptedArtifactError, InfrastructureError, Magi2Error
from magi2.stages.snapshots import picture_name
from magi2.types import StageName
from magi2_airflow.mount import STATIC
from magi2_airflow.renders.app import app
from magi2_airflow.renders.bundle import TYPES
from magi2_airflow.renders.media import LINK_LIFE, picture_type
from magi2_airflow.renders.streaming import FOR_EVER, SHORT
from tests.operators.renders.renders_site import BATCH, NO_ROLE, PNG, Site, client, finish, publish

CONTENT = bytes(range(256))


def film(site: Site) -> str:
    return f"/media/{site.key('fox')}/clip.mp4"


def test_the_whole_says_what_it_is_and_that_it_never_changes(site: Site, viewer: TestClient) -> None:
    whole = viewer.get(film(site))
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, CONTENT, "video/mp4")
    expected = {
        "accept-ranges": "bytes",
        "content-length": "256",
        "etag": f'"{site.delivered["fox"].payloads["clip.mp4"].sha256}"',
        "cache-control": "private, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
    }
    assert expected.items() <= dict(whole.headers).items()
    assert "content-disposition" not in whole.headers


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=10-19", range(10, 20)),
        ("Bytes = 0-0", range(1)),
        ("bytes=250-", range(250, 256)),
        ("bytes=-6", range(250, 256)),
        ("bytes=-9000", range(256)),
        ("bytes=255-99999999999999999999999999", range(255, 256)),
    ],
)
def test_a_player_can_seek(site: Site, viewer: TestClient, asked: str, part: range) -> None:
    answer = viewer.get(film(site), headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, bytes(part))
    assert answer.headers["content-range"] == f"bytes {part.start}-{part.stop - 1}/256"
    assert (answer.headers["content-length"], answer.headers["cache-control"]) == (
        str(len(part)),
        FOR_EVER["Cache-Control"],
    )


@pytest.mark.parametrize("asked", ["bytes=256-", f"bytes={'9' * 400}-", "bytes=900-901", "bytes=-0"])
def test_a_part_beyond_the_end_is_refused_with_the_size(site: Site, viewer: TestClient, asked: str) -> None:
    answer = viewer.get(film(site), headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-range"], answer.content) == (416, "bytes */256", b"")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "asked",
    ["bytes=5-2", "bytes=-", "bytes=1-2,5-6", "lines=1-2", "bytes=\xb2-", "bytes=a-b", f"bytes={'9' * 9999}-", ""],
)
def test_what_is_no_single_range_gets_the_whole(site: Site, viewer: TestClient, asked: str) -> None:
    answer = viewer.get(film(site), headers={"Range": asked.encode("latin-1")})
    assert (answer.status_code, answer.content) == (200, CONTENT)


def test_a_part_of_another_version_is_not_mixed_into_this_one(site: Site, viewer: TestClient) -> None:
    tag = viewer.head(film(site)).headers["etag"]
    for known, status in ((tag, 206), ('"other"', 200), (f"W/{tag}", 200), ("Wed, 21 Oct 2026 07:28:00 GMT", 200)):
        answer = viewer.get(film(site), headers={"Range": "bytes=0-9", "If-Range": known})
        assert (answer.status_code, len(answer.content)) == (status, 10 if status == 206 else 256), known


def test_what_the_browser_has_is_not_sent_again(site: Site, viewer: TestClient) -> None:
    tag = viewer.head(film(site)).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        for ask in (viewer.get, viewer.head):
            answer = ask(film(site), headers={"If-None-Match": known, "Range": "bytes=0-9"})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag), known
    assert viewer.get(film(site), headers={"If-None-Match": '"other"'}).status_code == 200
    assert client(NO_ROLE).get(film(site), headers={"If-None-Match": tag}).status_code == 403


def test_a_browser_can_ask_what_there_is(site: Site, viewer: TestClient) -> None:
    head = viewer.head(film(site), headers={"Range": "bytes=0-9"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "256", b"")
    assert "content-disposition" not in head.headers
    for ask in (viewer.get, viewer.head):
        saved = ask(f"{film(site)}?download=1")
        assert saved.headers["content-disposition"] == f'attachment; filename="{site.key("fox")[:12]}-clip.mp4"'


def test_pictures_are_pictures(site: Site, viewer: TestClient) -> None:
    for name, kind in (("poster.jpg", "jpeg"), ("contact_sheet.jpg", "jpeg"), ("thumbnail.webp", "webp")):
        answer = viewer.get(f"/media/{site.key('fox')}/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"image/{kind}")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == FOR_EVER["Cache-Control"]


def test_a_clip_from_before_there_were_thumbnails_shows_its_poster(site: Site, viewer: TestClient) -> None:
    address = f"/media/{site.key('fox again')}/thumbnail.webp"
    for ask in (viewer.get, viewer.head):
        answer = ask(address, follow_redirects=True)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
        assert answer.url.path == f"/media/{site.key('fox again')}/poster.jpg"
    assert "immutable" not in viewer.get(address).headers["cache-control"], "it may be made anew, then with one"


def test_a_damaged_file_is_not_sent_nor_kept(own_site: Site) -> None:
    own_site.deployment.store.fetch("mux", own_site.key("fox"), "clip.mp4").write_bytes(bytes(256))
    answer = client().get(film(own_site))
    assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-store")


def test_a_large_file_comes_by_blocks_that_fit_together(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magi2_airflow.renders.streaming.BLOCK_BYTES", 7)
    read, asked = own_site.deployment.store.read, []
    monkeypatch.setattr(own_site.deployment.store, "read", lambda *given: asked.append(given[3:]) or read(*given))
    assert client().get(film(own_site)).content == CONTENT
    assert max(stop - start for start, stop in asked) == 7
    assert client().get(film(own_site), headers={"Range": "bytes=3-40"}).content == CONTENT[3:41]


@pytest.mark.parametrize(
    ("error", "status"), [(CorruptedArtifactError("it is gone"), 404), (InfrastructureError("no answer"), 503)]
)
def test_a_store_that_breaks_off_ends_the_answer_short(
    own_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Magi2Error, status: int
) -> None:
    monkeypatch.setattr("magi2_airflow.renders.streaming.BLOCK_BYTES", 100)
    read, ends_at = own_site.deployment.store.read, [100]

    def breaks_off(stage: str, key: str, payload: Payload, start: int, stop: int) -> bytes:
        if start >= ends_at[0]:
            raise error
        return read(stage, key, payload, start, stop)

    monkeypatch.setattr(own_site.deployment.store, "read", breaks_off)
    strict = TestClient(app, headers={"X-Role": "viewer"})  # which raises what the app does
    answer = strict.get(film(own_site))
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "256", CONTENT[:100])
    assert [record.exc_info for record in caplog.records if str(error) in record.getMessage()] == [None]
    ends_at[0] = 0
    assert strict.get(film(own_site)).status_code == status


def test_a_server_says_in_one_line_that_an_answer_came_short(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("uvicorn.error")
    for text in (*SHORT, "a fault of the program"):
        try:
            raise RuntimeError(text)
        except RuntimeError:
            logger.exception("Exception in ASGI application")
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]
    assert all(text in record.getMessage() for text, record in zip(SHORT, caplog.records, strict=False))


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


def test_a_store_with_a_public_endpoint_is_reached_by_a_link_that_lives_minutes(
    own_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def link(stage: str, key: str, name: str, *, expires: timedelta, save_as: str | None) -> str:
        asked.append((stage, key, name, expires, save_as))
        return f"https://s3.example/{key}/{name}?signed"

    store, viewer = own_site.deployment.store, client()
    monkeypatch.setattr(store, "link", link)
    monkeypatch.setattr(type(store), "link_origin", "https://s3.example")
    answer = viewer.get(film(own_site))
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        f"https://s3.example/{own_site.key('fox')}/clip.mp4?signed",
    )
    assert asked == [("mux", own_site.key("fox"), "clip.mp4", LINK_LIFE, None)]
    viewer.get(f"{film(own_site)}?download=1")
    assert asked.pop()[-1] == f"{own_site.key('fox')[:12]}-clip.mp4"
    assert timedelta(minutes=1) <= LINK_LIFE <= timedelta(minutes=30)
    head = viewer.head(film(own_site))
    assert (head.status_code, head.headers["content-length"], head.headers["accept-ranges"]) == (200, "256", "bytes")
    old = viewer.get(f"/media/{own_site.key('fox again')}/thumbnail.webp")
    assert (old.status_code, old.headers["location"]) == (307, "poster.jpg")


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("", ""),
        ("&public_endpoint=https://clips.example:8443", "https://clips.example:8443"),
        ("&public_endpoint=https://s3.amazonaws.com", "https://*.amazonaws.com"),
    ],
)
def test_pages_load_media_from_nowhere_but_here_and_a_public_endpoint(
    own_site: Site, tmp_path: Path, address: str, origin: str
) -> None:
    own_site.deployment.store = open_store(f"s3://clips?endpoint=http://s3:8333{address}", scratch=tmp_path)
    assert (own_site.deployment.media_origin, own_site.deployment.links_media) == (origin, bool(origin))


def test_the_reference_image_of_a_clip_is_shown(own_site: Site) -> None:
    address, store = f"/images/{BATCH}/{own_site.id('cat')}/1", own_site.deployment.store
    answer = client().get(address)
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    assert answer.headers["cache-control"] == FOR_EVER["Cache-Control"]
    assert client().get(address, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
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


def test_picture_of_a_clip_at_work_is_shown_to_who_may_read_and_kept_by_nobody(own_site: Site) -> None:
    address, viewer = f"/pictures/{BATCH}/{own_site.id('long')}?step=10", client("viewer")
    assert (viewer.get(address).status_code, viewer.get(address).content) == (204, b"")
    picture = b"RIFF\0\0\0\0WEBPVP8 "
    own_site.deployment.store.put_document(picture_name(own_site.id("long")), picture)
    answer = viewer.get(address)
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, picture, "image/webp")
    assert answer.headers["cache-control"] == "no-store"
    assert client(NO_ROLE).get(address).status_code == 403 and client(None).get(address).status_code == 401
    assert viewer.get(f"/pictures/{BATCH}/{'0' * 64}").status_code == 404
    own_site.deployment.store.put_document(picture_name(own_site.id("long")), b"<script>")
    assert viewer.get(address).status_code == 204
