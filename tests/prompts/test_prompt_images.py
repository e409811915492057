"""Images as the language model gets them."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image

from magi2.errors import ImageError
from magi2.prompts.ask import build_messages
from magi2.prompts.figures import Figure
from magi2.prompts.image_part import MAX_SIDE, image_part, image_url

LIMIT = 200_000


def picture(
    size: tuple[int, int] = (40, 20), kind: str = "PNG", orientation: int | None = None, mode: str = "RGB"
) -> bytes:
    image = Image.new(mode, size, "red" if mode != "P" else 1)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, kind, exif=exif)
    return buffer.getvalue()


def noise(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 100).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def decoded(url: str) -> tuple[str, bytes, Image.Image]:
    head, payload = url.split(",", 1)
    content = base64.b64decode(payload)
    return head, content, Image.open(io.BytesIO(content))


@pytest.mark.parametrize(("kind", "mime"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp")])
def test_type_is_told_from_the_content_not_the_name(tmp_path: Path, kind: str, mime: str) -> None:
    path = tmp_path / "wrong.gif"
    path.write_bytes(picture(kind=kind))
    for source in (str(path), path, picture(kind=kind)):
        head, content, _ = decoded(image_url(source, max_bytes=LIMIT))
        assert head == f"data:image/{mime};base64" and content == picture(kind=kind)


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF"])
def test_other_types_become_jpeg(kind: str) -> None:
    head, _, image = decoded(image_url(picture(kind=kind), max_bytes=LIMIT))
    assert head == "data:image/jpeg;base64" and image.format == "JPEG" and image.size == (40, 20)


def test_orientation_is_applied() -> None:
    _, _, image = decoded(image_url(picture(kind="JPEG", orientation=6), max_bytes=LIMIT))
    assert image.size == (20, 40) and image.getexif().get(0x0112, 1) == 1


def test_large_pictures_are_scaled_to_side_and_bytes() -> None:
    _, _, image = decoded(image_url(picture((MAX_SIDE + 1000, 100)), max_bytes=LIMIT))
    assert max(image.size) == MAX_SIDE
    _, content, _ = decoded(image_url(noise(900), max_bytes=60_000))
    assert len(content) <= 60_000
    with pytest.raises(ImageError, match="does not fit"):
        image_url(noise(200), max_bytes=100)


def test_palettes_and_alpha_are_converted_when_rewritten() -> None:
    for mode in ("P", "LA", "RGBA", "I;16"):
        content = io.BytesIO()
        Image.new(mode, (MAX_SIDE + 10, 4)).save(content, "PNG")
        assert decoded(image_url(content.getvalue(), max_bytes=LIMIT))[2].mode == "RGB"


def test_remote_and_data_urls_pass_whatever_their_case() -> None:
    for url in ("https://h/x.png", "HTTP://h/x.png", "data:image/gif;base64,AAAA"):
        assert image_part(url, max_bytes=LIMIT) == {"type": "image_url", "image_url": {"url": url}}
    good = image_url(picture(), max_bytes=LIMIT)
    assert image_url(good, max_bytes=LIMIT) == good
    assert image_url("DATA" + good[4:], max_bytes=LIMIT) == good
    mislabelled = good.replace("image/png", "image/jpeg")
    assert image_url(mislabelled, max_bytes=LIMIT) == good


@pytest.mark.parametrize(
    "url", ["data:image/png,abc", "data:image/png;base64,@@@", "data:image/png;base64," + "AAAA" * 100]
)
def test_broken_data_urls_are_refused(url: str) -> None:
    with pytest.raises(ImageError):
        image_url(url, max_bytes=50)


def test_missing_folders_garbage_and_truncated_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(noise(300)[:5000])
    for name in ("missing.png", "text.png", "", "bad\0name"):
        with pytest.raises(ImageError):
            image_url(str(tmp_path / name) if "\0" not in name else name, max_bytes=LIMIT)
    with pytest.raises(ImageError):
        image_url(tmp_path / "cut.png", max_bytes=1000)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.png").write_bytes(picture())
    assert image_url("~/a.png", max_bytes=LIMIT).startswith("data:image/png")


def test_a_picture_that_was_exchanged_since_it_was_checked_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(picture())
    figure = Figure(1, "<Figure 1>", str(path), hashlib.sha256(picture()).hexdigest())
    (message,) = build_messages("x", [figure], max_image_bytes=LIMIT)
    assert message["content"][1]["image_url"]["url"].startswith("data:image/png")
    path.write_bytes(noise(100))
    with pytest.raises(ImageError, match="changed since the batch was read"):
        build_messages("x", [figure], max_image_bytes=LIMIT)


def test_language_model_sees_no_colour_that_viewers_do_not_show() -> None:
    clear = io.BytesIO()
    Image.new("RGBA", (80, 80), (0, 255, 0, 0)).save(clear, "PNG")
    _, _, shown = decoded(image_url(clear.getvalue(), max_bytes=10**6))
    assert min(shown.convert("RGB").getpixel((5, 5))) > 250  # type: ignore[type-var, arg-type]
