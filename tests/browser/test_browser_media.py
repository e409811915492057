"""Clips and pictures of a store that the browser cannot reach: all of them come through Airflow's API server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from selenium.common.exceptions import WebDriverException

from magi2.types import CLIP, StageName
from tests.browser.browser_page import Page
from tests.browser.browser_site import BrowserSite, hidden_from_browsers
from tests.real_servers import S3Server


def test_the_browser_has_no_way_to_the_store(page: Page, s3_server: S3Server) -> None:
    with pytest.raises(WebDriverException, match="ERR_NAME_NOT_RESOLVED"):
        page.chromium.get(hidden_from_browsers(s3_server.endpoint))
    page.errors()


def test_the_wall_shows_thumbnails_and_a_clip_its_poster(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    pictures = "return [...document.querySelectorAll('.renders img.poster')]"
    page.until(lambda _: page.run(f"{pictures}.map((each) => each.naturalWidth)") == [64, 64, 64], "the thumbnails")
    assert all(source.endswith("/thumbnail.webp") for source in page.run(f"{pictures}.map((each) => each.currentSrc)"))
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    assert (page.find("video").get_attribute("poster") or "").endswith("/poster.jpg")
    show = "const picture = new Image(); picture.src = document.querySelector('.renders video').poster; return "
    page.until(lambda _: page.run(f"{show} picture.naturalWidth") == 64, "the poster")


def test_plain_pages_show_the_same(page: Page, site: BrowserSite) -> None:
    page.chromium.get(f"{site.airflow.url}/renders/batches/{site.night}")
    pictures = "return [...document.images].map((each) => (each.loading = 'eager', each.naturalWidth))"
    page.until(lambda _: page.run(pictures) == [64, 64, 64], "the thumbnails")


def test_a_download_is_the_stored_file(page: Page, site: BrowserSite, tmp_path: Path) -> None:
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.chromium.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.click("a.button", "Download")
    key = site.catalog.clips.get(site.night, site.clip_id("fox")).artifact_key  # type: ignore[union-attr]
    saved = tmp_path / f"{key[:12]}-{CLIP}"  # type: ignore[index]
    deadline = time.monotonic() + 20
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert saved.read_bytes() == site.store.fetch(StageName.MUX, str(key), CLIP).read_bytes()
