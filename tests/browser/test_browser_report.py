"""A report's page as a browser shows it from a disk, without any server."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from magi2.artifacts import ArtifactStore, LocalStore, open_store
from magi2.errors import ImageError
from magi2.media.ffmpeg import find_ffmpeg
from magi2.report.export import ClipFiles, export_report
from magi2.types import StageName
from tests.browser.browser_site import hidden_from_browsers
from tests.real_servers import S3Server
from tests.report_samples import clip, rendered

HOSTILE = ["<script>document.title = 'taken'</script>", '"><img src=x onerror="document.title = 1">', "</style><b>"]


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Three seconds of moving picture, and a poster."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    source = ("-f", "lavfi", "-i", "testsrc=size=128x64:rate=12:duration=3")
    codec = ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-g", "12", "-movflags", "+faststart")
    subprocess.run([find_ffmpeg().path, "-v", "error", *source, *codec, str(path)], check=True, timeout=60)
    poster = io.BytesIO()
    Image.new("RGB", (128, 64), "teal").save(poster, "JPEG")
    return {"clip.mp4": path.read_bytes(), "poster.jpg": poster.getvalue()}


def open_report(
    chromium: webdriver.Chrome,
    folder: Path,
    contents: dict[str, bytes],
    *,
    clips: ClipFiles = "copy",
    store: ArtifactStore | None = None,
) -> None:
    store = store or LocalStore(folder / "store")
    made = [clip(number, prompt=text) for number, text in enumerate(HOSTILE)]
    failures = {made[2].clip_id: (StageName.PREVIEW, ImageError(HOSTILE[0]))}
    plan = rendered(store, made, failures, contents)
    page = export_report(store, plan.batch_id, folder / "out", clips=clips).page
    chromium.get_log("browser")
    chromium.get(page.as_uri())


def complaints(chromium: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("clips", ["copy", "link"])
def test_a_clip_is_opened_played_and_seeked(
    chromium: webdriver.Chrome, tmp_path: Path, contents: dict[str, bytes], clips: ClipFiles
) -> None:
    open_report(chromium, tmp_path, contents, clips=clips)
    posters = "return [...document.images].map(each => each.naturalWidth)"
    WebDriverWait(chromium, 20).until(lambda _: chromium.execute_script(posters) == [128, 128])
    play_from_the_second_second(chromium)
    assert complaints(chromium) == []


def play_from_the_second_second(chromium: webdriver.Chrome) -> None:
    chromium.find_element(By.CSS_SELECTOR, ".clips summary").click()
    video = chromium.find_element(By.CSS_SELECTOR, ".clips details[open] video")
    chromium.execute_script("arguments[0].muted = true; arguments[0].currentTime = 2; arguments[0].play()", video)
    passed = "return arguments[0].currentTime > 2.2 && !arguments[0].error"
    WebDriverWait(chromium, 20).until(lambda _: chromium.execute_script(passed, video))


def test_a_linked_clip_plays_from_the_public_endpoint_of_a_store_that_the_browser_does_not_know(
    chromium: webdriver.Chrome, s3_server: S3Server, tmp_path: Path, contents: dict[str, bytes]
) -> None:
    endpoint = hidden_from_browsers(s3_server.endpoint)
    address = f"s3://{s3_server.bucket}/report?endpoint={endpoint}&public_endpoint={s3_server.endpoint}"
    open_report(chromium, tmp_path, contents, clips="link", store=open_store(address, scratch=tmp_path))
    play_from_the_second_second(chromium)
    assert complaints(chromium) == []


def test_hostile_prompts_stay_text(chromium: webdriver.Chrome, tmp_path: Path, contents: dict[str, bytes]) -> None:
    open_report(chromium, tmp_path, contents)
    assert chromium.title.startswith("night (")
    for text in HOSTILE:
        assert text in chromium.execute_script("return document.body.textContent")
    assert chromium.execute_script("return document.scripts.length + document.querySelectorAll('b').length") == 0
    assert complaints(chromium) == []


def test_the_page_is_light_or_dark_as_people_like_it(
    chromium: webdriver.Chrome, tmp_path: Path, contents: dict[str, bytes]
) -> None:
    open_report(chromium, tmp_path, contents)
    grounds = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        colour = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
        grounds.append(colour)
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 27)"]
