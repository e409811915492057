from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from magi2.errors import ConfigError
from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig

CASES = json.loads((Path(__file__).parents[1] / "golden" / "preview" / "cfg.json").read_text())["config"]["cases"]


@pytest.fixture(scope="module")
def expected(golden: Path) -> dict[str, Tensor]:
    return load_file(golden / "preview" / "cfg.safetensors")


@pytest.mark.parametrize("timestep", [999, 400])
@pytest.mark.parametrize("case", CASES)
def test_golden_guidance_is_met(expected: dict[str, Tensor], device: torch.device, case: str, timestep: int) -> None:
    guide = Guidance(GuidanceConfig(**CASES[case]), latent_frames=15, device=device)
    inputs = {name: expected[name].to(device) for name in ("model_video", "model_audio", "latent", "audio_latent")}
    prefix = f"{case}.t{timestep}."
    scale = guide.video_scale(timestep).cpu()
    assert torch.equal(scale, expected[prefix + "video_scale"].reshape(scale.shape))
    video = guide.video(inputs["model_video"], inputs["latent"], timestep)
    audio = guide.audio(inputs["model_audio"], inputs["audio_latent"])
    torch.testing.assert_close(video.cpu(), expected[prefix + "video"], rtol=0, atol=1e-5)
    torch.testing.assert_close(audio.cpu(), expected[prefix + "audio"], rtol=0, atol=1e-5)


def test_the_defaults_are_the_released_values() -> None:
    config = GuidanceConfig()
    assert (config.video_txt_guidance_scale, config.audio_txt_guidance_scale) == (5.0, 7.0)
    assert not (config.use_cfg_trick or config.use_dynamic_cfg or config.use_skimmed_cfg_linear)
    assert (config.cfg_trick_start_frame, config.cfg_trick_value) == (13, 2.0)
    assert (config.dynamic_cfg_start_t, config.dynamic_cfg_cutoff_value) == (500, 2.0)
    assert (config.skimmed_cfg_scale, config.cfg_rescale) == (3.0, 0.0)


def test_dynamic_guidance_starts_below_its_timestep() -> None:
    guide = Guidance(GuidanceConfig(use_dynamic_cfg=True), latent_frames=3, device="cpu")
    assert guide.video_scale(500).item() == 5.0
    assert guide.video_scale(499).item() == 2.0


def test_skimming_leaves_a_missing_unconditional_branch_alone() -> None:
    pair = torch.cat([torch.randn(1, 4, 2, 3, 3), torch.zeros(1, 4, 2, 3, 3)])
    latents = torch.randn(1, 4, 2, 3, 3)
    skimmed = Guidance(GuidanceConfig(use_skimmed_cfg_linear=True), latent_frames=2, device="cpu")
    assert torch.equal(skimmed.video(pair, latents, 999), 5 * pair[:1])


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0])
def test_skimming_leaves_small_scales_alone(scale: float) -> None:
    pair, latents = torch.randn(2, 4, 2, 3, 3), torch.randn(1, 4, 2, 3, 3)
    plain = Guidance(GuidanceConfig(scale), latent_frames=2, device="cpu")
    skimmed = Guidance(GuidanceConfig(scale, use_skimmed_cfg_linear=True), latent_frames=2, device="cpu")
    assert torch.equal(skimmed.video(pair, latents, 999), plain.video(pair, latents, 999))


def test_full_rescale_restores_the_conditional_spread() -> None:
    pair, latents = torch.randn(2, 9, 6), torch.randn(1, 9, 6)
    guided = Guidance(GuidanceConfig(cfg_rescale=1.0), latent_frames=1, device="cpu").audio(pair, latents)
    torch.testing.assert_close(guided.std(dim=1), pair[:1].std(dim=1))


def test_inputs_are_not_written_to() -> None:
    config = GuidanceConfig(use_cfg_trick=True, use_skimmed_cfg_linear=True, cfg_rescale=0.5)
    guide = Guidance(config, latent_frames=15, device="cpu")
    pair, latents = torch.randn(2, 4, 15, 3, 3), torch.randn(1, 4, 15, 3, 3)
    before = pair.clone(), latents.clone()
    guide.video(pair, latents, 999)
    assert torch.equal(pair, before[0]) and torch.equal(latents, before[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("video_txt_guidance_scale", -1.0),
        ("audio_txt_guidance_scale", float("nan")),
        ("cfg_rescale", float("inf")),
        ("skimmed_cfg_scale", "3"),
        ("cfg_trick_start_frame", 1.5),
        ("dynamic_cfg_start_t", -1),
        ("use_cfg_trick", 1),
        ("cfg_trick_value", True),
    ],
)
def test_a_bad_value_is_refused_naming_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        GuidanceConfig(**{field: value})
