"""Reference images against golden vectors, and images that cannot be used."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from magi2.errors import ImageError, InfrastructureError
from magi2.media import image as image_module
from magi2.media.image import letterbox, load_image, prepare_reference, reference_size

LEVEL = 1 / 128
"""bf16 spacing near 1, the README's tolerance."""
CASES = [
    (name, height, width)
    for name in ("wide_160x90", "portrait_75x131", "square_100", "odd_97x53", "rgba_64x48", "gray_50x70", "exif6_90x60")
    for height, width in ((128, 224), (96, 64))
]


@pytest.fixture(scope="module")
def images(golden: Path) -> dict[str, Path]:
    return {path.stem: path for path in (golden / "output/images").iterdir()}


@pytest.mark.parametrize(("name", "height", "width"), CASES)
def test_prepared_image_matches_golden(
    golden: Path, images: dict[str, Path], name: str, height: int, width: int
) -> None:
    expected = load_file(golden / "output/image_preparation.safetensors")[f"{name}@{height}x{width}"]
    actual = prepare_reference(load_image(images[name]), height=height, width=width)
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    assert torch.equal(actual, actual.bfloat16().float())
    difference = (actual - expected.float()).abs()
    assert difference.max() <= LEVEL
    assert difference.mean() <= 1e-3


def test_square_mode_matches_golden(golden: Path, images: dict[str, Path]) -> None:
    expected = load_file(golden / "output/image_preparation.safetensors")["wide_160x90@square.rows"]
    actual = prepare_reference(load_image(images["wide_160x90"]), height=128, width=224, mode="square")
    assert actual.shape == (1, 3, 1, 320, 320)
    assert (actual[..., ::40, :] - expected.float()).abs().max() <= LEVEL


@pytest.mark.parametrize("name", ["odd", "portrait"])
def test_letterbox_canvas_matches_golden(golden: Path, images: dict[str, Path], name: str) -> None:
    expected = load_file(golden / "output/image_preparation.safetensors")[f"resizepad_{name}_64x112"]
    source = next(path for stem, path in images.items() if stem.startswith(name))
    actual = torch.from_numpy(np.array(letterbox(load_image(source), height=64, width=112)))
    assert (actual.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("case", ["landscape", "portrait", "square"])
def test_every_step_matches_the_preview_golden(golden: Path, case: str) -> None:
    tensors = load_file(golden / "preview/ref_image_preprocess.safetensors")
    described = json.loads((golden / "preview/ref_image_preprocess.json").read_text())
    height, width = described["config"]["gen_height"], described["config"]["gen_width"]
    picture = Image.fromarray(tensors[f"{case}.image"].numpy())
    target = reference_size(picture.width, picture.height, height=height, width=width)
    assert list(target) == described["cases"][case]["target_hw"]
    canvas = torch.from_numpy(np.array(letterbox(picture, height=target[0], width=target[1])))
    assert (canvas.int() - tensors[f"{case}.canvas"].int()).abs().max() <= 1
    actual = prepare_reference(picture, height=height, width=width)
    assert (actual - tensors[f"{case}.vae_input_bf16"].float()).abs().max() <= LEVEL


def test_real_borders_match_golden(golden: Path) -> None:
    tensors = load_file(golden / "preview/ref_image_preprocess.safetensors")
    expected = tensors["letterbox96.canvas"].int()
    canvases = [
        torch.from_numpy(np.array(letterbox(Image.fromarray(tensors[f"{case}.image"].numpy()), height=96, width=96)))
        for case in ("landscape", "portrait", "square")
    ]
    assert min((canvas.int() - expected).abs().max().item() for canvas in canvases) <= 1


def test_published_sizes_follow_the_image(golden: Path) -> None:
    for case in json.loads((golden / "preview/ref_image_preprocess.json").read_text())["published_geometry"]:
        (width, height), (image_width, image_height) = case["gen_wh"], case["image_wh"]
        target = reference_size(image_width, image_height, height=height, width=width)
        assert list(target) == case["target_hw"]
        assert [side // 32 * 32 for side in target] == case["vae_input_hw"]


@pytest.mark.parametrize(("height", "width"), [(128, 224), (96, 64)])
def test_too_elongated_image_is_refused_with_numbers(images: dict[str, Path], height: int, width: int) -> None:
    with pytest.raises(ImageError, match=r"300x40 .* at least 32"):
        prepare_reference(load_image(images["pano_300x40"]), height=height, width=width)


def test_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"absent\.png: no such image"):
        load_image(tmp_path / "absent.png")


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_unreadable_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=r"broken\.png: not a readable image"):
        load_image(path)


def test_truncated_image_is_refused(tmp_path: Path, images: dict[str, Path]) -> None:
    content = images["wide_160x90"].read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match=r"cut\.png"):
        load_image(tmp_path / "cut.png")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_image_that_the_disk_does_not_give_is_no_bad_image(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(image_module.Image, "open", fail)
    with pytest.raises(InfrastructureError, match=rf"kite\.png: {os.strerror(number)}"):
        load_image(tmp_path / "kite.png")


def test_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not a readable image"):
        load_image(tmp_path)


def test_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (300, 200)).save(tmp_path / "big.png")
    monkeypatch.setattr(image_module, "MAX_PIXELS", 300 * 200 - 1)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were decoded"))
    with pytest.raises(ImageError, match=r"big\.png: 300x200 pixels, at most 59999"):
        load_image(tmp_path / "big.png")


def test_bomb_beyond_the_libraries_own_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (300, 200)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match=r"bomb\.png"):
        load_image(tmp_path / "bomb.png")


def test_sixteen_bit_gray_keeps_its_shades(tmp_path: Path) -> None:
    shades = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(shades).save(tmp_path / "deep.png")
    loaded = np.array(load_image(tmp_path / "deep.png"))
    assert (loaded[..., 0] == shades // 256).all()


def test_palette_with_transparency_becomes_rgb(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).quantize().save(tmp_path / "palette.png", transparency=0)
    assert load_image(tmp_path / "palette.png").mode == "RGB"
