"""Tables that are computed once, pinned to their values: a changed base, offset, shift or order of entries is seen.

The numbers are those of the formulas in float64, worked out without the product's code.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from magi2.checkpoints.published import TEXT_CONFIG
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.models.audio_vae.resample import DELIVERY_RATIO
from magi2.models.layers import rope_table
from magi2.models.preview import adapters as preview
from magi2.models.preview import coordinates
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.models.preview.time_channels import normalised_time, time_channels, time_frequencies
from magi2.models.refiner import model as refiner
from magi2.models.refiner import positions
from magi2.models.refiner.config import RefinerConfig
from magi2.models.text_encoder.tower import build_tower, parse_config
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER
from magi2.models.turbo_vae.windows import plan_windows
from magi2.models.video_vae.statistics import LATENT_MEAN, LATENT_STD, denormalise, normalise
from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.refine import noise_table
from magi2.sampling.unipc import FlowUniPC


@dataclass(frozen=True)
class Pinned:
    """A table by its length, its first entry, that at a third and the last, and three sums: of the entries, of their
    amounts, and of the entries times their places, counted from 1.
    """

    length: int
    entries: tuple[float, float, float]
    total: float
    amount: float
    moment: float

    def check(self, table: Tensor, tolerance: float = 1e-6) -> None:
        values = table.flatten().double()
        places = torch.arange(1, len(values) + 1, dtype=torch.float64)
        assert len(values) == self.length
        found = [values[0], values[len(values) // 3], values[-1], values.sum(), values.abs().sum(), values @ places]
        wanted = [*self.entries, self.total, self.amount, self.moment]
        assert [float(value) for value in found] == pytest.approx(wanted, rel=tolerance, abs=1e-9)


BANDS = Pinned(16, (1, 0.05623413252, 0.000177827941), 2.284657103, 2.284657103, 5.216524278)
TIME = Pinned(32, (1, 0.05623413252, 0.0001333521432), 3.997908234, 3.997908234, 15.97207415)
TEXT = Pinned(32, (1, 0.006493816316, 1.6548171e-07), 2.527143739, 2.527143739, 6.386448031)


def text_frequencies() -> Tensor:
    tower = build_tower(parse_config(TEXT_CONFIG), num_layers=4)
    frequencies: Tensor = type(tower.rotary_emb)(parse_config(TEXT_CONFIG)).inv_freq  # as the loader makes them anew
    return frequencies


@pytest.mark.parametrize(
    ("pinned", "table"),
    [
        pytest.param(BANDS, lambda: preview.Rope(PreviewConfig().head_dim).bands, id="preview: 10000^(-i/16)"),
        pytest.param(BANDS, lambda: refiner.Rope(RefinerConfig().head_dim).bands, id="refiner: 10000^(-i/16)"),
        pytest.param(TIME, lambda: time_frequencies(64), id="time: exp(-ln(10000) i/32)"),
        pytest.param(TEXT, text_frequencies, id="text: 1e7^(-2j/64), a quarter of 256"),
    ],
)
def test_frequencies(pinned: Pinned, table: Callable[[], Tensor]) -> None:
    pinned.check(table())


def test_time_channels_are_cosines_then_sines_of_a_thousandth_of_the_timestep_times_a_thousand() -> None:
    channels = time_channels(normalised_time(torch.tensor(500)), time_frequencies(64), 64)
    angles = [500 * 10000 ** (-i / 32) for i in range(32)]
    assert channels.tolist() == pytest.approx([*map(math.cos, angles), *map(math.sin, angles)], abs=1e-4)


# Of a grid of 3 x 2 x 4 cells and its like. An angle is (position - centre) * (reference - 1) / (size - 1) * band, the
# centre being (size - 1) / 2 in space and 0 in time; sines of all axes come before cosines.
ROPES: dict[str, tuple[Pinned, Callable[[], Tensor]]] = {
    "preview video": (
        Pinned(2304, (0, 0.8414709848, 0.9999999644), 1147.122948, 1227.68111, 1363418.748),
        lambda: coordinates.video_coords((3, 2, 4), interpolation="extra"),
    ),
    "preview video, stretched to 32 x 32": (
        Pinned(2304, (0, 0.8414709848, 0.9999962013), 833.0764254, 1287.9806, 1004002.309),
        lambda: coordinates.video_coords((3, 2, 4), interpolation="inter"),
    ),
    "preview audio, eight rows a latent frame": (
        Pinned(1920, (0, 1, 1), 981.03247, 983.1778945, 966618.2287),
        lambda: coordinates.audio_coords(20),
    ),
    "preview text": (Pinned(480, (0, 1, 1), 240, 240, 63480), lambda: coordinates.text_coords(5)),
    "first image after four latent frames": (
        Pinned(384, (-0.2794154982, 0.4794255386, 0.999999996), 184.6856985, 208.0532719, 40273.9226),
        lambda: coordinates.image_coords(0, (2, 2), 4),
    ),
    "figure of that image": (
        Pinned(96, (-0.2794154982, -0.9974949866, 0.9999999644), 38.06500636, 52.89848104, 2926.757781),
        lambda: coordinates.figure_coords(0, (2, 2), 4),
    ),
    "refiner video": (
        Pinned(2304, (0, 0.8414709848, 0.9999999644), 1147.122948, 1227.68111, 1363418.748),
        lambda: positions.video_coords((3, 2, 4), torch.arange(24)),
    ),
    "refiner audio": (
        Pinned(1920, (0, 1, 1), 981.03247, 983.1778945, 966618.2287),
        lambda: positions.audio_coords(20, torch.device("cpu")),
    ),
    "refiner text": (
        Pinned(480, (0, 1, 1), 240, 240, 63480),
        lambda: positions.text_coords(5, torch.device("cpu")),
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_table(name: str) -> None:
    pinned, coords = ROPES[name]
    pinned.check(rope_table(coords(), preview.Rope(128).bands), tolerance=1e-5)


@dataclass(frozen=True)
class Solver:
    """A schedule of s u / (1 + (s - 1) u), u from fp32(0.999) down in equal steps, and UniPC's coefficients on it:
    second order but for the ends, in lambda = ln((1 - sigma) / sigma).
    """

    steps: int
    shift: float
    sigmas: Pinned
    timesteps: Pinned
    decay: Pinned
    drive: Pinned
    ratio: Pinned
    rho_older: Pinned
    rho_newest: Pinned


SOLVERS = (
    Solver(
        steps=100,
        shift=7.0,
        sigmas=Pinned(101, (0.9998570221, 0.9340766933, 0), 79.30256287, 79.30256287, 3440.92458),
        timesteps=Pinned(100, (999, 934, 65), 79257, 79257, 3438645),
        decay=Pinned(100, (0.9985578435, 0.9969884478, 0), 96.57857286, 96.57857286, 4737.319254),
        drive=Pinned(100, (-0.001442156527, -0.003011552163, -1), -3.421427142, 3.421427142, -312.6807464),
        ratio=Pinned(100, (0, -1.015409021, 0), -101.1745018, 101.1745018, -4753.244349),
        rho_older=Pinned(100, (0, 0.08269343324, 0), 8.11919889, 8.11919889, 421.6003367),
        rho_newest=Pinned(100, (0.5, 0.4210399328, 0.5), 42.63755472, 42.63755472, 2141.965845),
    ),
    Solver(
        steps=5,
        shift=5.0,
        sigmas=Pinned(6, (0.9997998425, 0.8820932456, 0), 4.158228626, 4.158228626, 11.40236046),
        timesteps=Pinned(5, (999, 952, 555), 4156, 4156, 11396),
        decay=Pinned(5, (0.952344644, 0.9264186491, 0), 3.472577934, 3.472577934, 8.308724577),
        drive=Pinned(5, (-0.04765535599, -0.07358135087, -1), -1.527422066, 1.527422066, -6.691275423),
        ratio=Pinned(5, (0, -5.647819331, 0), -7.681778284, 7.681778284, -18.22379789),
        rho_older=Pinned(5, (0, 0.02467983953, 0), 0.1891917046, 0.1891917046, 0.6327260234),
        rho_newest=Pinned(5, (0.5, 0.5555765541, 0.5), 2.538267263, 2.538267263, 7.54981594),
    ),
)


@pytest.mark.parametrize("pinned", SOLVERS, ids=("preview", "refiner"))
def test_sigmas_and_coefficients_of_the_published_schedules(pinned: Solver) -> None:
    profile = load_profile("1080p", Settings().configs)
    sampled = profile.preview if pinned.steps == 100 else profile.refiner
    assert sampled is not None and (sampled.steps, sampled.shift) == (pinned.steps, pinned.shift)
    solver = FlowUniPC(pinned.steps, pinned.shift)
    pinned.sigmas.check(solver.sigmas)
    pinned.timesteps.check(solver.timesteps, tolerance=0)
    for name in ("decay", "drive", "ratio", "rho_older", "rho_newest"):
        values = [getattr(interval, name) for interval in solver._intervals]
        # fp32 lambdas near sigma 1 lose digits, which ratio and rho take the differences of.
        tolerance = 1e-4 if name in ("decay", "drive") else 5e-3
        getattr(pinned, name).check(torch.stack([torch.tensor(0.0) if v is None else v for v in values]), tolerance)


def test_noise_table_of_the_refiner() -> None:
    """Roots of betas even from sqrt(0.00085) to sqrt(0.012), signal sqrt(prod(1 - beta)), shifted to end in 0."""
    Pinned(1000, (0.9995749096, 0.7117546365, 0), 495.2455205, 495.2455205, 153796.5254).check(noise_table(), 1e-5)
    refined = load_profile("1080p", Settings().configs).refiner
    assert refined is not None and refined.noise_index == 220
    assert float(noise_table()[220]) == pytest.approx(0.839, abs=5e-4)


def test_latent_statistics_are_to_the_bit_those_of_the_video_autoencoder() -> None:
    digests = {
        name: hashlib.sha256(torch.tensor(values, dtype=torch.float32).numpy().tobytes()).hexdigest()[:16]
        for name, values in (("mean", LATENT_MEAN), ("std", LATENT_STD))
    }
    assert digests == {"mean": "949b2b912baae729", "std": "65b2ceee20228ad6"}
    ones = torch.ones(1, 48, 1, 1, 1)
    wanted = [(1 - mean) / std for mean, std in zip(LATENT_MEAN, LATENT_STD, strict=True)]
    assert normalise(ones).flatten().tolist() == pytest.approx(wanted, rel=1e-6)
    wanted = [std + mean for mean, std in zip(LATENT_MEAN, LATENT_STD, strict=True)]
    assert denormalise(ones).flatten().tolist() == pytest.approx(wanted, rel=1e-6)


def test_scales_of_guidance() -> None:
    plain = Guidance(GuidanceConfig(), latent_frames=32, device="cpu")
    assert [float(plain.video_scale(timestep)) for timestep in (999, 500, 499, 0)] == [5, 5, 5, 5]
    tricked = GuidanceConfig(use_cfg_trick=True, use_dynamic_cfg=True)
    scales = Guidance(tricked, latent_frames=32, device="cpu")
    assert scales.video_scale(500).flatten().tolist() == 13 * [2] + 19 * [5]
    assert scales.video_scale(499).flatten().tolist() == 32 * [2]


def test_lengths_and_windows_of_a_ten_second_clip() -> None:
    assert latent_size(10, 512, 896) == (32, 32, 56) and audio_latent_count(10) == 250
    assert (DELIVERY_RATIO.numerator, DELIVERY_RATIO.denominator) == (441, 512)
    sizes = PUBLISHED_TURBO_DECODER.first_chunk_size, PUBLISHED_TURBO_DECODER.step_size
    windows = plan_windows(63, *sizes)
    assert [(window.start, window.stop) for window in windows] == [
        *((0, 8), (6, 15), (13, 22), (20, 29), (27, 36)),
        *((34, 43), (41, 50), (48, 57), (55, 63)),
    ]
    assert [window.frame_start for window in windows] == [0, *range(25, 249, 28)]


def test_schedules_of_the_tiers() -> None:
    tiers = load_profile("1080p", Settings().configs).preview.tiers
    high, draft = tiers["high"][100], tiers["draft"][100]
    assert (len(high.reuse_steps), sum(high.reuse_steps), high.guide_until_step) == (50, 2026, None)
    assert (len(draft.reuse_steps), sum(draft.reuse_steps), draft.guide_until_step) == (64, 3137, 38)
