"""preview: noise becomes video and audio latents under the prompt's guidance."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from magi2.artifacts.recipe import Recipe
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from magi2.sampling.noise import ClipGenerator
from magi2.sampling.preview import denoise_preview
from magi2.stages.base import Product, Stage
from magi2.stages.context import StageContext
from magi2.stages.contracts import encode_contract, preview_contract, text_contract
from magi2.types import Clip, StageName


class PreviewStage(Stage[PreviewModel]):
    """Writes the latents of the preview and the random stream's position, from which the refiner goes on."""

    name: ClassVar[StageName] = StageName.PREVIEW

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> PreviewModel:
        model = load_preview(
            self.context.weights.folder("preview"),
            self.context.book.profile.architectures.preview,
            device=self.context.device,
            compute_dtype=self.context.compute_dtype,
        )
        if self.context.accelerator.triton:
            # Here: a CPU machine need not have Triton.
            from magi2.models.preview.fast_ops import use_fast_ops

            use_fast_ops(model)
        return model

    def make(self, clip: Clip, models: PreviewModel, folder: Path) -> Product:
        profile = self.context.book.profile
        settings, shapes = profile.preview, preview_contract(profile)
        layout = models.prepare(
            latent_size=latent_size(profile.duration_s, settings.height, settings.width),
            audio_length=audio_latent_count(profile.duration_s),
            conditioning=load_conditioning(self.context, clip),
            use_ref_for_uncond=settings.use_ref_for_uncond,
        )
        generator = ClipGenerator(clip.seed, noise_device(self.context))
        video_noise = generator.video_noise(shapes["video"].shape)
        audio_noise = generator.audio_noise(shapes["audio"].shape)
        video, audio = denoise_preview(
            models,
            layout,
            video_noise.to(self.context.device),
            audio_noise.to(self.context.device),
            num_steps=settings.steps,
            shift=settings.shift,
            guidance=settings.guidance,
            on_step=self.on_step(clip),
        )
        tensors = {"video": video, "audio": audio, "generator_state": generator.state()}
        return Product(
            files=self.save(folder, tensors, shapes),
            report={"steps": settings.steps, "generator_device": generator.device_type},
        )


def noise_device(context: StageContext) -> torch.device:
    """Where a clip's noise is drawn."""
    return torch.device("cpu") if context.book.profile.noise_device == "cpu" else context.device


def load_conditioning(context: StageContext, clip: Clip) -> Conditioning:
    """The clip's embeddings and the negative prompt's, on the device."""
    contract = encode_contract(context.book.profile, len(clip.figures))
    tensors = context.tensors(context.recipe(StageName.ENCODE, clip), contract, clip)
    tensors = {name: tensor.to(context.device) for name, tensor in tensors.items()}
    references = tuple(
        ReferenceImage(tensors[f"reference_latents_{index}"], tensors["figure_embeds"][index])
        for index in range(len(clip.figures))
    )
    return Conditioning(tensors["text_embeds"], load_negative(context, clip, tensors["text_embeds"]), references)


def load_negative(context: StageContext, clip: Clip, like: torch.Tensor) -> torch.Tensor:
    """The negative prompt's rows [1, L, C] on the device of `like`; no rows when the profile uses none."""
    recipe = context.book.negative
    if recipe is None:
        return like[:, :0]
    return context.tensors(recipe, text_contract(context.book.profile), clip)["text_embeds"].to(like.device)
