"""One picture of all clips with anything wrong: the contact sheet of each, under what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from demo_world.measure.judged import Judged

COLUMNS = 4
TILE_WIDTH = 320
LINE_HEIGHT = 14
GAP = 8


def draw_sheet(judged: Sequence[Judged], path: Path) -> int:
    """Write the wrong clips' picture to `path` and give back how many it shows; without any, no file is left there."""
    tiles = [_tile(one) for one in judged if one.verdict is not None and not one.is_right]
    path.unlink(missing_ok=True)
    if tiles:
        height = max(tile.height for tile in tiles) + GAP
        rows = -(-len(tiles) // COLUMNS)
        sheet = Image.new("RGB", (COLUMNS * (TILE_WIDTH + GAP), rows * height), "white")
        for index, tile in enumerate(tiles):
            sheet.paste(tile, (index % COLUMNS * (TILE_WIDTH + GAP), index // COLUMNS * height))
        sheet.save(path)
    return len(tiles)


def _tile(one: Judged) -> Image.Image:
    assert one.verdict is not None and one.contact_sheet is not None
    lines = [one.wanted.name, *(_fault(one, measure) for measure in one.verdict.wrong)]
    with Image.open(one.contact_sheet) as frames:
        picture = frames.convert("RGB").resize((TILE_WIDTH, round(TILE_WIDTH * frames.height / frames.width)))
    tile = Image.new("RGB", (TILE_WIDTH, picture.height + LINE_HEIGHT * len(lines)), "white")
    ImageDraw.Draw(tile).multiline_text((2, 0), "\n".join(lines), fill="black", spacing=2)
    tile.paste(picture, (0, LINE_HEIGHT * len(lines)))
    return tile


def _fault(one: Judged, measure: str) -> str:
    assert one.verdict is not None
    if measure == "sync":
        return f"sync: beeps {', '.join(f'{offset:g}' for offset in one.verdict.offsets)} s from contacts"
    return f"{measure}: {getattr(one.verdict.measured, measure)}, asked for {getattr(one.wanted.asked, measure)}"
