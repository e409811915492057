"""What a decoded picture is like, frame by frame, measured while it is written: numbers without a judgement.

The judgement is `magi2.quality`'s, when somebody reads them: thresholds may change, the measures stay.
"""

# Shapes: f frames, H x W pixels; h x w cells of a reduced frame, at most 160 wide

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from magi2.quality.measures import LAG_S, NAMES_OF_PICTURE

CELLS_WIDE = 160
ROWS_READ = 64
"""Rows of a frame that are looked at in full width, for noise and blocks."""
FEW = 1 / 500
"""Share of the cells that stands for the brightest, darkest or most changed ones: one small object is enough."""
AT_ONCE = 8
"""Frames that are measured together: fewer calls for small ones, little memory for large ones."""
BLOCK = 16
"""Pixels of a latent, at whose edges a decoder's blocks would show."""
UNSEEN = 12
"""Sum of the channels' differences that says nothing of where things are: a decoder's noise."""
EDGES_LEFT_OUT = 4
"""Block edges on which the outlines of a thing or two may lie."""


class PictureMeasures:
    """Takes the windows of a clip in order; keeps reduced frames of the last 0.4 s and nothing else.

    `level`, `peak`, `spread` and `colour` are mean brightness, that of the brightest cells, the distance from the
    darkest to the brightest cells in the channel where it is largest, and the mean distance between channels.
    `noise` is the median of how far a pixel is from its neighbours' mean, `blocks` how much steeper the picture is at
    the edges of blocks than beside them. `change` and `step` are the mean change to the frame before and that of the
    cells that change most, `moved` the latter over 0.4 s. All these in levels of 0..255. `x` and `y` are where what
    differs from the mean brightness has its centre, `wide` how far it reaches from there to either side, in thousandths
    of the picture's width. `lost` is 1 where a value was not finite, else 0.
    """

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._lag = max(1, round(LAG_S * fps))
        self._past: Tensor | None = None
        self._rows: list[list[float]] = []

    def add(self, pixels: Tensor, frames: Tensor) -> None:
        """Measure a window: decoded `pixels` [1, 3, f, H, W] and the `frames` [f, H, W, 3] uint8 made from them."""
        # A sum that is not finite tells as much as a look at every value, and takes a thirtieth of the time.
        lost = (~torch.isfinite(pixels[0].sum(dim=(0, 2, 3), dtype=torch.float32))).float()
        seen = torch.cat([self._measure(some) for some in frames.split(AT_ONCE)])
        self._rows += torch.cat([seen, lost[:, None]], dim=1).tolist()

    @property
    def frame_count(self) -> int:
        return len(self._rows)

    def report(self) -> dict[str, str | float]:
        """The measures as text, one number for each frame, and the frames of a second."""
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in NAMES_OF_PICTURE)
        texts = {name: as_text(column) for name, column in zip(NAMES_OF_PICTURE, columns, strict=True)}
        return {"fps": self._fps, **texts}

    def _measure(self, frames: Tensor) -> Tensor:
        """All measures of frames [f, H, W, 3] but `lost`: [f, 12]."""
        cells = _reduced(frames)
        known = cells if self._past is None else torch.cat([self._past, cells])
        at = torch.arange(len(known) - len(cells), len(known), device=cells.device)
        difference = (cells - known[(at - 1).clamp(min=0)]).abs()
        moved = (cells - known[(at - self._lag).clamp(min=0)]).abs()
        self._past = known[-self._lag :]
        columns = (
            cells.mean((1, 2, 3)),
            _most(cells.amax(1)),
            (_most(cells) + _most(-cells)).amax(1),
            (cells.amax(1) - cells.amin(1)).mean((1, 2)),
            *_texture(frames),
            difference.mean((1, 2, 3)),
            _most(difference.amax(1)),
            _most(moved.amax(1)),
            *_centre(cells),
        )
        return torch.stack(columns, dim=1)


def as_text(values: object) -> str:
    """Numbers with one decimal at most, parted by blanks: short, and legible in a manifest."""
    return " ".join(f"{value:.1f}".removesuffix(".0") for value in values)  # type: ignore[attr-defined]


def _reduced(frames: Tensor) -> Tensor:
    """Frames [f, H, W, 3] uint8 as means of their cells, [f, 3, h, w]; of large ones every other pixel is read."""
    stride = 2 if frames.shape[2] > 4 * CELLS_WIDE else 1
    read = frames[:, ::stride, ::stride].permute(0, 3, 1, 2).float()
    size = min(ceil(read.shape[3] / CELLS_WIDE), read.shape[2])
    return avg_pool2d(read, size) if size > 1 else read


def _centre(cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`x`, `y` and `wide` of [f, 3, h, w]; the middle of a picture of one colour."""
    weights = ((cells - cells.mean((2, 3), keepdim=True)).abs().sum(1) - UNSEEN).clamp(min=0) + 1e-6
    weights /= weights.sum((1, 2), keepdim=True)
    across, down = weights.sum(1), weights.sum(2)
    scale = 1000 / across.shape[1]
    columns, rows = (scale * (torch.arange(part.shape[1], device=cells.device) + 0.5) for part in (across, down))
    x, y = across @ columns, down @ rows
    return x, y, (across * (columns - x[:, None]).square()).sum(1).sqrt()


def _most(values: Tensor) -> Tensor:
    """The mean of the few largest of [..., h, w]."""
    flat = values.flatten(-2)
    return flat.topk(max(1, int(FEW * flat.shape[-1]))).values.mean(-1)


def _texture(frames: Tensor) -> tuple[Tensor, Tensor]:
    """`noise` and `blocks`, from some rows of the green channel."""
    rows = frames[:, :: max(1, frames.shape[1] // ROWS_READ), :, 1].float()
    noise = (rows[..., 1:-1] - (rows[..., :-2] + rows[..., 2:]) / 2).abs().flatten(1).median(1).values
    steep = (rows[..., 1:] - rows[..., :-1]).abs().mean(1)
    return noise, _edges(steep[:, BLOCK - 1 :: BLOCK]) - _edges(steep[:, BLOCK // 4 - 1 :: BLOCK])


def _edges(columns: Tensor) -> Tensor:
    """How steep the picture is at these columns [f, n], the steepest ones left out and then the flatter half."""
    count = columns.shape[1]
    left_out = min(EDGES_LEFT_OUT, count // 2)
    steepest = columns.sort(1, descending=True).values[:, left_out : left_out + ceil((count - left_out) / 2)]
    return steepest.mean(1) if count else columns.new_zeros(len(columns))
