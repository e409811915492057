"""One S3 server, one Airflow API server and one Chromium for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.browser_page import Page, open_chromium
from tests.browser.browser_site import BrowserSite, credentials_of
from tests.real_servers import S3Server, seaweedfs


@pytest.fixture(scope="package")
def chromium() -> Iterator[webdriver.Chrome]:
    chromium = open_chromium()
    yield chromium
    chromium.quit()


@pytest.fixture(scope="package")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in credentials_of(server).items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="package")
def site(
    chromium: webdriver.Chrome,
    s3_server: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_checkpoint: Path,
    airflow_template: Path,
) -> Iterator[BrowserSite]:
    folder = tmp_path_factory.mktemp("browser")
    site = BrowserSite.at(folder, tiny_checkpoint, airflow_template, s3_server)
    try:
        with ThreadPoolExecutor(1) as helper:
            filled = helper.submit(site.fill, folder)
            site.start()  # here, since the server ends with the thread that started it
            filled.result()
        yield site
    finally:
        site.airflow.stop()
        site.catalog.close()


@pytest.fixture
def page(chromium: webdriver.Chrome, site: BrowserSite) -> Iterator[Page]:
    page = Page(chromium, site)
    page.enter("ann")
    page.errors()
    yield page
    assert page.errors() == []
