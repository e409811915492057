"""A clip's page among others: from clip to clip, what is done to it now, what colours mean, no hole."""

from __future__ import annotations

from itertools import pairwise

from selenium.webdriver.common.keys import Keys

from magi2.catalog import ClipState
from tests.browser.browser_page import Page
from tests.browser.browser_site import MANY, TAKES, WATCHED, BrowserSite


def test_one_goes_from_clip_to_clip_in_the_order_of_the_wall(page: Page, site: BrowserSite) -> None:
    page.visit(batch=MANY, text="prompt 49", order="name")
    page.click('.card-link[aria-label^="clip-0049"]')
    page.find("h1", "clip-0049")
    page.find(".neighbours span", "1 of 111")
    assert page.find(".neighbours [aria-disabled]").text == "Previous"
    page.click(".neighbours a", "Next")
    page.find(".neighbours span", "2 of 111")
    page.press(Keys.ARROW_RIGHT)
    page.find("h1", "clip-0491")
    page.find(".neighbours span", "3 of 111")
    page.press(Keys.ARROW_LEFT)
    page.find(".neighbours span", "2 of 111")
    page.find("h1", "clip-0490")
    assert page.run("return document.activeElement.tagName") == "H1"
    page.click(".crumbs a", "many")
    page.until(lambda _: "text=prompt+49" in page.chromium.current_url, "the wall that one came from")


def test_arrow_keys_in_a_film_or_a_field_stay_there(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.find(".neighbours a")
    page.run("arguments[0].focus()", page.find("video"))
    page.press(Keys.ARROW_RIGHT)
    page.press(Keys.ARROW_LEFT)
    page.find("h1", "fox")


def test_there_is_no_hole_under_the_player(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.find(".timeline")
    heights = "return [...document.querySelectorAll('.renders .seen > *')].map((e) => e.getBoundingClientRect())"
    boxes = page.run(heights)
    assert len(boxes) == 3  # the player, its defects, its stages
    assert all(0 <= below["top"] - above["bottom"] <= 24 for above, below in pairwise(boxes))


def test_a_clip_at_work_is_seen_with_its_stage_and_step(page: Page, site: BrowserSite) -> None:
    site.work_on_a_watched_clip(step=10)
    page.visit(batch=WATCHED)
    page.find(".at-work-words", "preview, step 10 of 20")
    assert page.find('.card-link[data-index="1"]').accessible_name == "clip-0001, preview, step 10 of 20"
    width = "return document.querySelector('.renders .at-work-picture')?.naturalWidth"
    page.until(lambda _: page.run(width) == 64, "the picture")
    site.work_on_a_watched_clip(step=13, is_shown=False)
    page.find(".at-work-words", "preview, step 13 of 20")
    page.until(lambda _: page.run(width) is None, "the tile without a picture")
    page.click(".card-link[aria-label^='clip-0001']")
    page.find(".picture .at-work-words", "preview, step 13 of 20")


def test_clips_of_one_name_are_told_apart_and_colours_are_explained(page: Page, site: BrowserSite) -> None:
    clip_ids = site.enter_takes()
    page.visit(batch=TAKES)
    cards = " ".join(card.text for card in page.until_cards(2))
    assert all(f"take ({clip_id[:12]})" in cards for clip_id in clip_ids)
    page.click(".legend summary", "Legend")
    meanings = page.find(".legend").text
    assert all(word in meanings for word in (*ClipState, "flagged", "made", "reused"))
