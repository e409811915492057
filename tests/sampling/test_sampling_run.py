"""The denoising loop with the real preview model on the tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from magi2.config.strict import validate
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from magi2.sampling.guidance import Guidance
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.preview import SamplerState, denoise_preview
from magi2.sampling.unipc import FlowUniPC

STEPS, SHIFT = 4, 7.0
LATENT_SIZE, AUDIO_LENGTH = (3, 4, 6), 20


@pytest.fixture(scope="module")
def run(golden: Path, device: torch.device) -> dict[str, Tensor]:
    tensors = load_file(golden / "preview" / "sampling_run.safetensors")
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def tiny(golden: Path, device: torch.device) -> dict[str, PreviewModel]:
    folder = golden / "preview" / "tiny_checkpoint"
    published = json.loads((folder / "tiny_config.json").read_text())
    fields = {**published["arch_config"], "data_proxy": published["data_proxy_config"]}
    config = validate(PreviewConfig, fields, "tiny_config.json")
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {name: load_preview(folder, config, device=device, compute_dtype=dtype) for name, dtype in dtypes.items()}


def conditioning(run: dict[str, Tensor], case: str) -> Conditioning:
    image = ReferenceImage(run["ref_image_feat"][0], run["ref_image_special_token_embedding"][0, 0])
    return Conditioning(run["txt_feat"], run["null_txt_feat"], (image,) if case == "i2v" else ())


def relative_l2(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


def denoise(
    model: PreviewModel, run: dict[str, Tensor], case: str, resume: SamplerState | None = None
) -> tuple[list[SamplerState], Tensor, Tensor]:
    """States after every step but the last, and the final latents."""
    states: list[SamplerState] = []
    video, audio = denoise_preview(
        model,
        model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(run, case)),
        run["noise_video"],
        run["noise_audio"],
        num_steps=STEPS,
        shift=SHIFT,
        guidance=GuidanceConfig(),
        resume=resume,
        snapshot_every=1,
        on_snapshot=states.append,
    )
    return states, video, audio


def test_the_golden_schedule_is_met(run: dict[str, Tensor]) -> None:
    solver = FlowUniPC(STEPS, SHIFT)
    assert torch.equal(solver.timesteps, run["timesteps"].cpu())
    assert torch.equal(solver.sigmas, run["sigmas"].cpu())


@pytest.mark.parametrize("case", ["t2v", "i2v"])
def test_every_golden_step_is_met_in_fp32(tiny: dict[str, PreviewModel], run: dict[str, Tensor], case: str) -> None:
    states, video, audio = denoise(tiny["fp32"], run, case)
    latents = [(state.video, state.audio) for state in states] + [(video, audio)]
    assert len(latents) == STEPS
    for step, (step_video, step_audio) in enumerate(latents):
        assert relative_l2(step_video, run[f"{case}.fp32.step{step}.video"]) <= 1e-4, step
        assert relative_l2(step_audio, run[f"{case}.fp32.step{step}.audio"]) <= 1e-4, step
    assert relative_l2(video, run[f"{case}.fp32.video"]) <= 1e-4
    assert relative_l2(audio, run[f"{case}.fp32.audio"]) <= 1e-4


@pytest.mark.parametrize("case", ["t2v", "i2v"])
def test_golden_bf16_velocities_are_near(tiny: dict[str, PreviewModel], run: dict[str, Tensor], case: str) -> None:
    """Each step starts from the stored state. One router flip, which the processor's rounding may cause, is worth up
    to 0.3 in a step after guidance, so each modality is compared over the four steps together."""
    model = tiny["bf16"]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(run, case))
    guide = Guidance(GuidanceConfig(), latent_frames=LATENT_SIZE[0], device=model.device)
    video, audio = run["noise_video"], run["noise_audio"]
    guided_video, guided_audio = [], []
    for step, timestep in enumerate(run["timesteps"]):
        video_pair, audio_pair = model(video, audio, timestep, layout)
        guided_video.append(guide.video(video_pair, video, int(timestep)))
        guided_audio.append(guide.audio(audio_pair, audio))
        video, audio = run[f"{case}.bf16.step{step}.video"], run[f"{case}.bf16.step{step}.audio"]
    for modality, guided in (("video", guided_video), ("audio", guided_audio)):
        stored = [run[f"{case}.bf16.step{step}.cfg_{modality}"] for step in range(len(guided))]
        assert relative_l2(torch.cat(guided), torch.cat(stored)) <= 0.3, modality


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_resuming_the_real_model_after_any_step_ends_bit_equal(
    tiny: dict[str, PreviewModel], run: dict[str, Tensor], dtype: str
) -> None:
    states, video, audio = denoise(tiny[dtype], run, "i2v")
    for state in states:
        restored = SamplerState.from_tensors(load(save(state.tensors())))
        _, resumed_video, resumed_audio = denoise(tiny[dtype], run, "i2v", resume=restored)
        assert torch.equal(resumed_video, video) and torch.equal(resumed_audio, audio)
