"""preview: noise becomes video and audio latents under the prompt's guidance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from magi2 import platform
from magi2.artifacts.recipe import Recipe
from magi2.errors import ContractError, CorruptedArtifactError, InputError
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from magi2.sampling.noise import ClipGenerator
from magi2.sampling.preview import SamplerState, denoise_preview
from magi2.sampling.schedule import GUIDED
from magi2.stages.at_work import ClipPictures
from magi2.stages.base import Product
from magi2.stages.context import StageContext
from magi2.stages.contracts import encode_contract, preview_contract, text_contract
from magi2.stages.layouts import check_preview_room
from magi2.stages.snapshots import load_snapshot
from magi2.stages.software import expert_step
from magi2.stages.teamwork import TeamStage
from magi2.types import Clip, StageName


@dataclass(frozen=True)
class PreviewInputs:
    """What a clip is conditioned on, on the host, and the state to go on from if there is one."""

    conditioning: Conditioning
    state: Mapping[str, Tensor] | None


@dataclass(frozen=True)
class PreviewLatents:
    """The clip's latents, and the random stream behind its two draws."""

    video: Tensor
    audio: Tensor
    generator: ClipGenerator


class PreviewStage(TeamStage[PreviewModel, PreviewInputs, PreviewLatents]):
    """Writes the latents of the preview and the random stream's position, from which the refiner goes on."""

    name: ClassVar[StageName] = StageName.PREVIEW

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.kernels = ("attention", expert_step(context.book.profile.compute.weights))
        self.pictures = ClipPictures(context)

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> PreviewModel:
        model = load_preview(
            self.context.weights.folder("preview"),
            self.context.book.profile.architectures.preview,
            device=self.context.device,
            compute_dtype=self.context.compute_dtype,
            weights=self.context.book.profile.compute.weights,
            mesh=self.context.team.mesh,
        )
        if self.context.accelerator.triton:
            # Here: a CPU machine need not have Triton.
            from magi2.models.preview.fast_ops import use_fast_ops

            use_fast_ops(model)
        return model

    def check_memory(self) -> None:
        context, profile = self.context, self.context.book.profile
        if context.accelerator.name == "cpu":
            return
        check_preview_room(
            context.team.mesh.layout,
            profile,
            platform.memory_stats(accelerator=context.accelerator).total,
            image_tokens=max((_image_tokens(context, clip) for clip in self.clips), default=0),
        )

    def read(self, clip: Clip) -> PreviewInputs:
        conditioning = load_conditioning(self.context, clip)
        state = load_snapshot(self.context.store, self.recipe(clip), lambda: self._noise(clip)[0].state())
        return PreviewInputs(conditioning, state)

    def compute(self, clip: Clip, inputs: PreviewInputs, models: PreviewModel, folder: Path | None) -> PreviewLatents:
        context, settings = self.context, self.context.book.profile.preview
        schedule = settings.evaluated
        layouts = self.layouts(models, inputs.conditioning, schedule.counts(settings.steps))
        generator, video_noise, audio_noise = self._noise(clip)
        state = None if inputs.state is None else SamplerState.from_tensors(inputs.state)
        self.begin_steps(clip, *schedule.position(state.step if state else 0, settings.steps))
        tell = self.on_step(clip)
        with (
            self.pictures.of(clip, is_resumed=state is not None) as show,
            self.snapshots(clip, generator.state(), show) as save,
        ):
            video, audio = denoise_preview(
                models,
                layouts.get(GUIDED),
                video_noise.to(context.device),
                audio_noise.to(context.device),
                num_steps=settings.steps,
                shift=settings.shift,
                guidance=settings.guidance,
                schedule=schedule,
                conditional_layout=layouts.get(1),
                on_step=lambda done, total: tell(*schedule.position(done, total)),
                resume=state,
                snapshot_every=context.snapshot_every,
                on_snapshot=save,
            )
        return PreviewLatents(video, audio, generator)

    def layouts(self, model: PreviewModel, conditioning: Conditioning, counts: Iterable[int]) -> dict[int, ClipLayout]:
        """What steps of a clip share that evaluate so many branches, by that number."""
        profile = self.context.book.profile
        on_device = _on_device(conditioning, self.context.device)
        return {
            branches: model.prepare(
                latent_size=latent_size(profile.duration_s, profile.preview.height, profile.preview.width),
                audio_length=audio_latent_count(profile.duration_s),
                conditioning=on_device,
                use_ref_for_uncond=profile.preview.use_ref_for_uncond,
                guided=branches == GUIDED,
            )
            for branches in counts
        }

    def noise(self, clip: Clip) -> tuple[Tensor, Tensor]:
        """The clip's noise for video and for audio, on the device."""
        _, video, audio = self._noise(clip)
        return video.to(self.context.device), audio.to(self.context.device)

    def write(self, clip: Clip, outputs: PreviewLatents, folder: Path) -> Product:
        generator = outputs.generator
        tensors = {"video": outputs.video, "audio": outputs.audio, "generator_state": generator.state()}
        settings = self.context.book.profile.preview
        return Product(
            files=self.save(folder, tensors, preview_contract(self.context.book.profile)),
            report={
                "steps": settings.steps,
                "evaluations": settings.evaluated.evaluations(settings.steps),
                "generator_device": generator.device_type,
            },
        )

    def _noise(self, clip: Clip) -> tuple[ClipGenerator, Tensor, Tensor]:
        """The clip's random stream after its draws, and what was drawn for video and for audio."""
        shapes = preview_contract(self.context.book.profile)
        generator = ClipGenerator(clip.seed, noise_device(self.context))
        return generator, generator.video_noise(shapes["video"].shape), generator.audio_noise(shapes["audio"].shape)


def noise_device(context: StageContext) -> torch.device:
    """Where a clip's noise is drawn."""
    return torch.device("cpu") if context.book.profile.noise_device == "cpu" else context.device


def _image_tokens(context: StageContext, clip: Clip) -> int:
    """Tokens of the clip's reference images: their cells, and for each its figure token."""
    if not clip.figures:
        return 0
    contract = encode_contract(context.book.profile, len(clip.figures))
    try:
        specs = context.specs(context.recipe(StageName.ENCODE, clip), contract, clip)
    except (InputError, ContractError, CorruptedArtifactError):
        return 0  # the same error fails this clip, and no other, when its inputs are read
    return sum(1 + prod(specs[f"reference_latents_{index}"].shape[-2:]) for index in range(len(clip.figures)))


def load_conditioning(context: StageContext, clip: Clip) -> Conditioning:
    """The clip's embeddings and, where a step is guided, the negative prompt's, on the host."""
    contract = encode_contract(context.book.profile, len(clip.figures))
    tensors = context.tensors(context.recipe(StageName.ENCODE, clip), contract, clip)
    references = tuple(
        ReferenceImage(tensors[f"reference_latents_{index}"], tensors["figure_embeds"][index])
        for index in range(len(clip.figures))
    )
    text = tensors["text_embeds"]
    guided = context.book.profile.preview.is_guided
    return Conditioning(text, load_negative(context, clip, text) if guided else text[:, :0], references)


def load_negative(context: StageContext, clip: Clip, like: Tensor) -> Tensor:
    """The negative prompt's rows [1, L, C] on the host; no rows of `like` when the profile uses none."""
    recipe = context.book.negative
    if recipe is None:
        return like[:, :0]
    return context.tensors(recipe, text_contract(context.book.profile), clip)["text_embeds"]


def _on_device(conditioning: Conditioning, device: torch.device) -> Conditioning:
    references = tuple(
        ReferenceImage(image.latents.to(device), image.figure_embeds.to(device)) for image in conditioning.references
    )
    return Conditioning(conditioning.text_embeds.to(device), conditioning.negative_embeds.to(device), references)
