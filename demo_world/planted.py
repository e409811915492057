"""Defects planted into the exact picture and sound of a take, each for some time at some place."""

# Shapes: F frames, H x W pixels, N samples

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from magi2.media.delivery import SAMPLE_RATE_HZ

Part = tuple[int, int]
"""From and to, in frames or samples."""
SEEN = 0.05
"""Less than that, of -1..1, nobody sees."""
SHIFT = 0.25
"""Of the picture's width."""


@dataclass(frozen=True)
class Decoded:
    """What decoders give: pixels [1, 3, F, H, W] in [-1, 1], and samples [2, N] at 44.1 kHz."""

    pixels: Tensor
    samples: Tensor
    fps: float

    def with_defect(self, name: str, start: float, end: float) -> Decoded:
        """A copy with a planted defect of `PLANTED` from `start` to `end`, in seconds."""
        pixels, samples = self.pixels.clone(), self.samples.clone()
        if name in PICTURE_DEFECTS:
            PICTURE_DEFECTS[name](pixels[0], (round(start * self.fps), round(end * self.fps)))
        else:
            samples = SOUND_DEFECTS[name](samples, (round(start * SAMPLE_RATE_HZ), round(end * SAMPLE_RATE_HZ)))
        return Decoded(pixels, samples, self.fps)

    def differs_from(self, other: Decoded) -> bool:
        """Whether anybody could see or hear a difference."""
        if self.samples.shape != other.samples.shape or not torch.equal(self.samples, other.samples):
            return True
        return not torch.allclose(self.pixels, other.pixels, atol=SEEN)


def _fill(level: tuple[float, float, float]) -> Callable[[Tensor, Part], None]:
    def plant(pixels: Tensor, part: Part) -> None:
        pixels[:, part[0] : part[1]] = torch.tensor(level)[:, None, None, None]

    return plant


def _freeze(pixels: Tensor, part: Part) -> None:
    pixels[:, part[0] : part[1]] = pixels[:, part[0] : part[0] + 1].clone()


def _garbage(pixels: Tensor, part: Part) -> None:
    some = pixels[:, part[0] : part[1]]
    pixels[:, part[0] : part[1]] = torch.rand(some.shape, generator=_generator()) * 2 - 1


def _noise(pixels: Tensor, part: Part) -> None:
    some = pixels[:, part[0] : part[1]]
    some += 0.4 * torch.randn(some.shape, generator=_generator())


def _checkerboard(pixels: Tensor, part: Part) -> None:
    rows, columns = (torch.arange(size) for size in pixels.shape[2:])
    pixels[:, part[0] : part[1]] += 0.5 * ((rows[:, None] // 16 + columns // 16) % 2) - 0.25


def _grey(pixels: Tensor, part: Part) -> None:
    pixels[:, part[0] : part[1]] = pixels[:, part[0] : part[1]].mean(0, keepdim=True)


def _flicker(pixels: Tensor, part: Part) -> None:
    pixels[:, part[0] : part[1] : 2] *= 0.7
    pixels[:, part[0] : part[1] : 2] -= 0.3


def _repeat(pixels: Tensor, part: Part) -> None:
    for at in range(part[0] + 1, part[1], 2):
        pixels[:, at] = pixels[:, at - 1]


def _shift(pixels: Tensor, part: Part) -> None:
    some = pixels[:, part[0] : part[1]]
    pixels[:, part[0] : part[1]] = some.roll((pixels.shape[2] // 3, int(SHIFT * pixels.shape[3])), (2, 3))


def _tear(pixels: Tensor, part: Part) -> None:
    height, width = pixels.shape[2:]
    some = pixels[:, part[0] : part[1]]
    some[:, :, : height // 2] = some[:, :, : height // 2].roll(width // 2, 3)
    some[:, :, height // 2 :] = some[:, :, height // 2 :].roll(width // 3, 3)


def _lose(pixels: Tensor, part: Part) -> None:
    pixels[:, part[0] : part[1]] = torch.nan


def _silence(samples: Tensor, part: Part) -> Tensor:
    samples[:, part[0] : part[1]] = 0
    return samples


def _clip(samples: Tensor, part: Part) -> Tensor:
    samples[:, part[0] : part[1]] = (8 * samples[:, part[0] : part[1]]).clamp(-1, 1)
    return samples


def _offset(samples: Tensor, part: Part) -> Tensor:
    samples[:, part[0] : part[1]] += 0.2
    return samples


def _mute_left(samples: Tensor, part: Part) -> Tensor:
    samples[0, part[0] : part[1]] = 0
    return samples


def _invert(samples: Tensor, part: Part) -> Tensor:
    samples[1, part[0] : part[1]] *= -1
    return samples


def _hiss(samples: Tensor, part: Part) -> Tensor:
    some = samples[:, part[0] : part[1]]
    samples[:, part[0] : part[1]] = torch.rand(some.shape, generator=_generator()) * 2 - 1
    return samples


def _lose_samples(samples: Tensor, part: Part) -> Tensor:
    samples[:, part[0] : part[1]] = torch.inf
    return samples


def _shorten(samples: Tensor, part: Part) -> Tensor:
    return samples[:, : samples.shape[1] - (part[1] - part[0])]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


PICTURE_DEFECTS: Mapping[str, Callable[[Tensor, Part], None]] = {
    "black": _fill((-1, -1, -1)),
    "white": _fill((1, 1, 1)),
    "green": _fill((-0.9, 0.4, -0.8)),
    "frozen": _freeze,
    "garbage": _garbage,
    "noise": _noise,
    "checkerboard": _checkerboard,
    "grey": _grey,
    "flicker": _flicker,
    "repeated": _repeat,
    "shifted": _shift,
    "torn": _tear,
    "nan": _lose,
}
SOUND_DEFECTS: Mapping[str, Callable[[Tensor, Part], Tensor]] = {
    "silent": _silence,
    "clipped": _clip,
    "offset": _offset,
    "left_dead": _mute_left,
    "inverted": _invert,
    "hiss": _hiss,
    "inf": _lose_samples,
    "shorter": _shorten,
}
PLANTED: Mapping[str, str] = {
    **{"black": "black", "white": "one_coloured", "green": "one_coloured", "frozen": "frozen", "garbage": "noisy"},
    **{"noise": "noisy", "checkerboard": "blocky", "grey": "colourless", "flicker": "flicker"},
    **{"repeated": "repeated_frames", "shifted": "cut", "torn": "cut", "nan": "non_finite", "silent": "silent"},
    **{"clipped": "clipped", "offset": "dc_offset", "left_dead": "one_channel_dead", "inverted": "channels_inverted"},
    **{"hiss": "harsh_noise", "inf": "non_finite", "shorter": "sound_short"},
}
"""What can be planted, and the flag by which it must be found."""
