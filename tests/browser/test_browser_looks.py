"""That the page is safe with hostile text, at home in Airflow's theme, light, and usable without a mouse."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

import magi2_airflow
from tests.browser.browser_batch import MARKUP, TOO_LONG
from tests.browser.browser_page import PHONE, Page
from tests.browser.browser_site import BrowserSite

STATIC = Path(magi2_airflow.__file__).parent / "renders" / "static"
MAX_PAGE_BYTES = 300_000


def test_hostile_text_is_shown_and_does_nothing(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    hostile = page.find('.card-link[aria-label*="bold"]')
    card = hostile.find_element("xpath", "./ancestor::li").text
    assert "<b>bold</b>" in card and "<img src=x" in card
    hostile.click()
    page.find("h1")
    assert page.find(".origin .said").text == MARKUP
    assert page.run("return document.title") == "Airflow"
    assert not page.all("script") and not page.all('img[src="x"]') and not page.all("bdi b")
    assert page.run("return getComputedStyle(document.querySelector('.renders h1 bdi')).unicodeBidi") == "isolate"


def test_endless_text_is_cut_until_asked_for(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("endless"))
    text = page.find(".origin .said")
    assert text.size["height"] < 200
    page.click(".origin button", "Show all")
    page.until(lambda _: text.size["height"] > 500, "the whole text")
    assert text.text == TOO_LONG
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_follows_airflows_theme(page: Page, site: BrowserSite, theme: str) -> None:
    page.enter("ann", theme=theme)
    page.visit(batch=site.night)
    page.until_cards(4)
    ink, paper = page.run(
        "const light = (color) => {"
        "  const pen = new OffscreenCanvas(1, 1).getContext('2d'); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);"
        "  return pen.getImageData(0, 0, 1, 1).data.slice(0, 3).reduce((sum, each) => sum + each) };"
        "const button = getComputedStyle(document.querySelector('.renders .button'));"
        "return [light(button.color), light(button.backgroundColor)]"
    )
    assert (ink < paper) == (theme == "light") and abs(ink - paper) > 350


def test_a_phone_shows_every_page_without_scrolling_sideways(page: Page, site: BrowserSite) -> None:
    page.enter("ann", size=PHONE)
    fox, again = site.clip_id("fox"), site.clip_id("fox-again")
    places = ({}, {"batch": site.night}, {"clip": fox}, {"clip": fox, "other": f"{site.night}:{again}"})
    for place in places:
        page.visit(**({"batch": site.night, **place} if place else {}))
        page.until(lambda _: not page.all(".loading"), "the page")
        boxes = page.run(
            "return [document.documentElement, ...document.querySelectorAll('.renders')]"
            ".map((box) => box.scrollWidth - box.clientWidth)"
        )
        assert max(boxes) <= 0, place


def test_the_wall_is_walked_by_keys(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    page.run("arguments[0].focus()", page.find('[data-index="0"]'))
    page.press(Keys.ARROW_RIGHT)
    page.press(Keys.ARROW_RIGHT)
    page.press(Keys.ARROW_LEFT)
    assert page.focused("data-index") == "1"
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ENTER)
    page.find("video")
    page.until(lambda _: page.run("return document.activeElement.tagName") == "H1", "the focus on the heading")


def test_everything_that_can_be_used_has_a_name(page: Page, site: BrowserSite) -> None:
    fox, again = site.clip_id("fox"), site.clip_id("fox-again")
    for place in ({}, {"clip": fox}, {"clip": fox, "other": f"{site.night}:{again}"}):
        page.visit(batch=site.night, **place)
        page.until(lambda _: not page.all(".loading"), "the page")
        nameless = [
            element.get_attribute("outerHTML")
            for element in page.all(":is(a, button, input, select, textarea, video, img:not([alt='']))")
            if element.is_displayed() and not element.accessible_name
        ]
        assert nameless == []


def test_nothing_is_asked_of_another_host_and_the_page_is_light(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.until_cards(4)
    loaded = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert {urlsplit(address).netloc for address in loaded} == {urlsplit(site.airflow.url).netloc}
    files = {Path(urlsplit(address).path).name for address in loaded if "/renders/static/" in address}
    assert {"renders.js", "renders.css", "grid.js"} < files
    assert sum((STATIC / name).stat().st_size for name in files) < MAX_PAGE_BYTES


def test_a_fault_of_ours_leaves_airflows_page_standing(page: Page, site: BrowserSite) -> None:
    page.visit()
    nonsense = '{"total": 1, "batches": [{}]}'
    page.run("const text = arguments[0]; window.asked = fetch; fetch = async () => new Response(text)", nonsense)
    page.choose("State", "failed")
    assert "This page has a fault" in page.find(".problem").text
    page.run("fetch = window.asked")
    page.chromium.find_element("link text", "Home").click()
    page.until(lambda chromium: not page.all("") and "/plugin/" not in chromium.current_url, "Airflow's home page")
    page.errors()  # React tells the console of the fault
