"""The pages as people walk through them: batches, the wall of posters, a clip, two clips side by side."""

from __future__ import annotations

import time

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.browser_batch import FOX
from tests.browser.browser_page import Page
from tests.browser.browser_site import MANY, NIGHT_RUN, WATCHED, BrowserSite


def test_the_menu_leads_to_the_batches_and_on_to_one(page: Page, site: BrowserSite) -> None:
    page.chromium.get(site.airflow.url)
    page.until(lambda chromium: chromium.find_element("link text", "Renders"), "the menu").click()
    page.find(".batch-link", "live")
    row = next(row for row in page.all(".batch") if "night" in row.text)
    assert "3 / 4" in row.text and "by ann" in row.text and "EUR" not in row.text
    assert "enhance: 2 made, 1 reused, 1 failed of 4" in row.get_attribute("textContent")
    page.click(".batch-link", "night")
    page.find("h1", "night")
    assert f"batch={site.night}" in page.chromium.current_url


def test_filters_narrow_the_wall_and_stay_in_the_address(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    page.search("fox")
    page.until_cards(2)
    page.choose("Tag", "snow")
    (card,) = page.until_cards(1)
    assert "fox" in card.text.splitlines()
    page.chromium.refresh()
    page.until_cards(1)
    page.visit(batch=site.night, show="failed")
    assert "endless" in page.until_cards(1)[0].text
    page.visit(batch=site.night, order="-updated", profile="tiny-preview")
    page.until_cards(4)


def test_failures_are_grouped_by_reason_and_lead_to_their_clips(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.click(".failures summary", "1 clip failed")
    assert "limit #" in page.find(".group-reason").text
    page.click(".group a", "Show")
    page.until_cards(1)
    page.click(".narrowed button", "Show all")
    page.until_cards(4)


def test_a_clip_plays_and_seeks(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.find("video")
    video = "document.querySelector('.renders video')"
    page.until(lambda _: page.run(f"return {video}.readyState >= 1"), "the film's length")
    assert page.run(f"return {video}.duration") == pytest.approx(10, abs=0.1)
    page.run(f"{video}.currentTime = 7")
    page.until(lambda _: page.run(f"return !{video}.seeking && {video}.readyState >= 2"), "the picture at 7 s")
    assert page.run(f"return {video}.currentTime") == pytest.approx(7, abs=0.05)
    page.run(f"{video}.muted = true; {video}.play()")
    page.until(lambda _: page.run(f"return {video}.currentTime > 7.2"), "the film to play on")
    source = page.run(f"return {video}.currentSrc")
    assert page.fetch(source, headers={"Range": "bytes=100-199"}) == 206


def test_a_clip_says_what_it_was_made_from_and_what_each_stage_did(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    assert page.find(".origin .said").text == FOX
    facts = page.find(".facts").text.replace("\n", " ")
    assert "Profile tiny-preview" in facts and "Seed 7" in facts and "Cost" in facts
    stages = [row.text.split()[:2] for row in page.all(".timeline tbody tr")]
    assert stages == [[stage, "made"] for stage in ("enhance", "encode", "preview", "decode", "mux")]
    page.click(".fold summary", "Recipe")
    assert '"stage": "mux"' in page.find(".fold[open] pre").text
    manifest, download = page.find(".links a", "Manifest"), page.find("a.button", "Download")
    assert page.fetch(manifest.get_attribute("href") or "") == 200
    assert page.fetch(download.get_attribute("href") or "") == 200
    assert page.run("return document.querySelector('.renders .sheet').naturalWidth") > 0


def test_two_clips_play_in_step(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    for name in ("fox", "fox-again"):
        page.click(f'[aria-label="Pick {name} to compare"]')
    page.click(".picked a", "Compare")
    page.find(".controls")
    times = "return [...document.querySelectorAll('.renders video')].map((video) => video.currentTime)"
    ready = "return [...document.querySelectorAll('.renders video')].every((video) => video.readyState >= 3)"
    page.until(lambda _: page.run(ready), "both films")
    page.click(".play", "Play")
    page.until(lambda _: min(page.run(times)) > 0.3, "both to play")
    page.click(".play", "Pause")
    page.until(lambda _: page.run(times)[0] == page.run(times)[1], "both to stand at one frame")
    page.run("arguments[0].focus()", page.find(".seek"))
    page.press(Keys.END)
    page.until(lambda _: page.run(times) == pytest.approx([10, 10], abs=0.1), "both at the end")
    rows = {row.text.split()[0]: row.get_attribute("data-different") for row in page.all(".differences tr")}
    assert rows["Prompt"] is None and rows["Seed"] == "true"


def test_a_clip_leads_to_the_same_prompt_under_another_seed(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.click(".others a")
    page.find("figcaption")
    assert [figure.text.split()[0] for figure in page.all("figcaption")] == ["fox", "fox-again"]
    page.click(".crumbs a", "night")
    page.until_cards(4)


def test_thousands_of_clips_are_drawn_a_screenful_at_a_time(page: Page) -> None:
    page.visit(batch=MANY)
    page.find("p", "5,000 clips")
    page.find(".card")
    page.run(
        "const box = document.querySelector('.renders .wall').closest('.stack');"
        "box.lastElementChild.scrollIntoView({ block: 'end' })"
    )
    page.find('.card-link[aria-label^="clip-4999"]')
    assert len(page.all(".card")) < 300
    page.click('.card-link[aria-label^="clip-4998"]')
    page.find("h1", "clip-4998")
    page.click(".crumbs a", "many")
    page.find('.card-link[aria-label^="clip-4998"]')


def test_a_running_batch_is_followed_but_not_on_a_hidden_page(page: Page, site: BrowserSite) -> None:
    asked = "return performance.getEntriesByType('resource').filter((each) => each.name.includes('/api/')).length"
    hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    page.visit(batch=WATCHED)
    page.until_cards(3)
    site.fail_a_watched_clip()
    page.find(".failures summary", "1 clip failed")
    page.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    time.sleep(1)
    before = page.run(asked)
    time.sleep(5)
    assert page.run(asked) == before
    page.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    page.until(lambda _: page.run(asked) > before, "the page to ask again")


def test_a_run_and_its_tasks_have_a_tab_with_the_batch(page: Page, site: BrowserSite) -> None:
    run = f"{site.airflow.url}/dags/magi2_render_batch/runs/{NIGHT_RUN}"
    page.chromium.get(f"{run}/plugin/run_renders")
    page.find("h1", "night")
    page.until_cards(4)
    page.click(".card-link")
    page.find("h1", "endless")
    page.click(".crumbs a", "night")
    page.until_cards(4)
    page.chromium.get(f"{run}/tasks/plan/plugin/task_renders")
    page.find("h1", "night")
