"""What may be done from the page, by whom, and that each action asks once."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from tests.browser.browser_page import PHONE, Page
from tests.browser.browser_site import LIVE, LIVE_RUN, BrowserSite


def test_failed_clips_run_again_after_one_question(page: Page, site: BrowserSite) -> None:
    before = len(site.runs())
    page.visit(batch=site.night)
    page.click(".failures summary")
    page.click(".failures button", "Rerun failed clips")
    assert "the 1 clip that failed" in page.find("dialog").text
    page.press(Keys.ESCAPE)
    page.until(lambda _: not page.all("dialog"), "the dialog to close")
    assert page.run("return document.activeElement.textContent") == "Rerun failed clips"
    assert len(site.runs()) == before
    page.press(Keys.ENTER)
    page.click("dialog button", "Start the run")
    notice = page.find(".notice")
    assert "Run started." in notice.text
    runs = site.runs()
    assert len(runs) == before + 1
    assert runs[0]["conf"]["rerun_of"] == site.night and runs[0]["conf"]["only"] == ["failed"]
    assert runs[0]["triggering_user_name"] == "ann"
    page.run("arguments[0].scrollIntoView({ block: 'center' })", page.find(".fold summary", "Who did what"))
    page.click(".fold summary", "Who did what")  # which the notice does not cover, however short the page is
    assert "ann rerun" in page.find(".history").text
    page.click(".notice a", "Open the run")
    page.until(lambda chromium: runs[0]["dag_run_id"][:20] in chromium.current_url, "the run's page")
    page.errors()  # whatever Airflow's own page says


def test_what_the_server_refuses_is_said_in_the_dialog(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.click(".actions button", "Rerun")
    page.find("dialog textarea").send_keys("preview.stepz=3")
    page.click("dialog button", "Start the run")
    assert "stepz" in page.find("dialog [role=alert]").text
    page.click("dialog button", "Back")
    assert all("400" in error for error in page.errors())


def test_a_running_batch_is_put_first_limited_paused_resumed_and_cancelled(page: Page, site: BrowserSite) -> None:
    page.visit(batch=LIVE)
    page.click(".actions button", "Priority")
    page.find("dialog input").send_keys(Keys.CONTROL, "a")
    page.find("dialog input").send_keys("7")
    page.click("dialog button", "Priority")
    page.until(lambda _: "priority 7" in page.find("header").text, "the priority")
    page.click(".actions button", "Set budget")
    page.find("dialog input").send_keys("12.5")
    page.click("dialog button", "Set budget")
    page.until(lambda _: "0.00 USD of 12.50 USD" in page.find("header").text, "the budget")
    page.click(".actions button", "Pause")
    page.click("dialog button", "Pause")
    page.find(".badge", "paused")
    page.click(".actions button", "Resume")
    page.click("dialog button", "Resume")
    page.find(".actions button", "Pause")
    page.click(".actions button", "Cancel batch")
    page.click("dialog button", "Keep running")
    assert site.run_state(LIVE_RUN) == "queued"
    page.click(".actions button", "Cancel batch")
    page.click("dialog button", "Cancel batch")
    page.find(".title .badge", "cancelled")
    assert site.run_state(LIVE_RUN) == "failed"


def test_a_viewer_looks_and_changes_nothing(page: Page, site: BrowserSite) -> None:
    page.enter("vic")
    page.visit(batch=site.night, clip=site.clip_id("fox"))
    page.find("a.button", "Download")
    page.visit(batch=site.night)
    page.until_cards(4)
    page.find(".failures summary").click()
    page.find(".group")
    assert not page.all(".actions") and not page.all(".failures button")
    for action, body in (
        ("rerun", {}),
        ("cancel", {}),
        ("pause", {}),
        ("priority", {"priority": 1}),
        ("budget", {"budget": 1}),
    ):
        assert page.fetch(f"/renders/api/batches/{site.night}/{action}", body) == 403
    assert len(page.errors()) == 5


def test_rights_lost_meanwhile_are_said_in_the_dialog(page: Page, site: BrowserSite) -> None:
    page.visit(batch=site.night)
    page.find(".actions button", "Rerun")
    page.chromium.add_cookie({"name": "_token", "value": site.token("vic")})
    page.click(".actions button", "Rerun")
    page.click("dialog button", "Start the run")
    assert "you may not trigger" in page.find("dialog [role=alert]").text
    assert all("403" in error for error in page.errors())


def test_a_batch_is_started_from_pasted_rows_after_a_look_at_them(page: Page, site: BrowserSite) -> None:
    before = len(site.runs())
    page.enter("ann", size=PHONE)
    page.visit()
    page.click("header button", "Start a batch")
    page.find("dialog textarea").send_keys("prompt,seed\na kite,1\na boat")
    page.click("dialog button", "Look at the rows")
    page.until(lambda _: "2 rows, of which 1 cannot be rendered" in page.find("dialog .looked").text, "the count")
    assert len(site.runs()) == before
    dialog = "document.querySelector('dialog')"
    assert page.run(f"return {dialog}.scrollWidth <= {dialog}.clientWidth && {dialog}.clientWidth <= innerWidth")
    page.find("dialog textarea").send_keys(Keys.CONTROL, "a")
    page.find("dialog textarea").send_keys("prompt,seed\na kite,1")
    page.click("dialog button", "Start the run")
    assert "Run started." in page.find(".notice").text
    runs = site.runs()
    assert len(runs) == before + 1 and runs[0]["conf"]["rows"] == "prompt,seed\na kite,1"
