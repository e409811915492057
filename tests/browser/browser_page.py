"""A Chromium on the page: what tests look at and click, each with a wait, since the page asks the server."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.browser_site import HIDDEN_HOST, BrowserSite

T = TypeVar("T")
TIMEOUT_S = 20.0
WIDE, PHONE = (1440, 900), (390, 844)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--autoplay-policy=no-user-gesture-required",
    f"--host-resolver-rules=MAP {HIDDEN_HOST} ~NOTFOUND",
)


def open_chromium() -> webdriver.Chrome:
    """A headless Chromium that asks nobody but the server."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


class Page:
    """The page "Renders" as somebody logged in sees it."""

    def __init__(self, chromium: webdriver.Chrome, site: BrowserSite) -> None:
        self.chromium, self.site = chromium, site
        self._wait = WebDriverWait(
            chromium,
            TIMEOUT_S,
            poll_frequency=0.1,
            ignored_exceptions=(NoSuchElementException, StaleElementReferenceException),
        )

    def enter(self, user: str, *, theme: str = "light", size: tuple[int, int] = WIDE) -> None:
        """Log in, choose the theme and the size of the window."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.chromium.get(f"{self.site.airflow.url}/renders/static/icon.svg")
        self.chromium.add_cookie({"name": "_token", "value": self.site.token(user)})
        self.run("localStorage.setItem('theme', arguments[0])", theme)

    def visit(self, **place: str) -> None:
        """Go to a place in the pages, and wait until it is drawn."""
        query = "&".join(f"{name}={value}" for name, value in place.items())
        self.chromium.get(f"{self.site.airflow.url}/plugin/renders?{query}")
        self.find("h1")

    def find(self, css: str, text: str | None = None) -> WebElement:
        """The first element that is shown, with exactly this text if one is given."""

        def look(chromium: webdriver.Chrome) -> WebElement | Literal[False]:
            found = chromium.find_elements(By.CSS_SELECTOR, f".renders {css}")
            return next((e for e in found if e.is_displayed() and text in (None, e.text)), False)

        return self.until(look, f"an element {css} {text or ''}")

    def all(self, css: str) -> list[WebElement]:
        """The elements that are there now."""
        return self.chromium.find_elements(By.CSS_SELECTOR, f".renders {css}")

    def click(self, css: str, text: str | None = None) -> None:
        """Click on an element once it is there."""
        self.find(css, text).click()

    def until(self, condition: Callable[[webdriver.Chrome], T | Literal[False]], what: str) -> T:
        """Wait for something; fails the test naming it."""
        return self._wait.until(condition, f"waited for {what}")

    def until_cards(self, count: int) -> list[WebElement]:
        """Wait until the wall shows so many clips."""
        self.until(lambda _: len(self.all(".card")) == count, f"{count} clips")
        return self.all(".card")

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script in the page."""
        return self.chromium.execute_script(script, *arguments)

    def fetch(self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None) -> int:
        """The status of a request that the page makes itself."""
        script = """
            const [path, body, headers, done] = arguments;
            const options = body === null ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
            fetch(path, options).then((answer) => done(answer.status));
        """
        headers = {"Content-Type": "application/json"} if headers is None else headers
        return int(self.chromium.execute_async_script(script, path, body, dict(headers)))

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus."""
        webdriver.ActionChains(self.chromium).send_keys(*keys).perform()

    def focused(self, attribute: str) -> str | None:
        """An attribute of what has the focus."""
        return self.run("return document.activeElement.getAttribute(arguments[0])", attribute)  # type: ignore[no-any-return]

    def choose(self, label: str, value: str) -> None:
        """Choose a value of a field."""
        self.find(f'[aria-label="{label}"] option[value="{value}"]').click()

    def search(self, text: str) -> None:
        """Type into the search box, over what stands there."""
        self.find("input[type=search]").send_keys(Keys.CONTROL, "a")
        self.find("input[type=search]").send_keys(text)

    def errors(self) -> list[str]:
        """What the browser complained of since it was last asked."""
        log = self.chromium.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]
