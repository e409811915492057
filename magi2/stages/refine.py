"""refine: the preview's video latents are enlarged to delivery size and denoised again."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from magi2.artifacts.recipe import Recipe
from magi2.config.profile import RefinerSettings
from magi2.errors import ContractError
from magi2.models.refiner.loading import load_refiner
from magi2.models.refiner.model import RefinerModel
from magi2.sampling.noise import ClipGenerator
from magi2.sampling.refine import denoise_refiner, upsample_latents
from magi2.stages.base import Product, Stage
from magi2.stages.context import StageContext
from magi2.stages.contracts import encode_contract, preview_contract, refine_contract, refined_size
from magi2.stages.preview import load_negative, noise_device
from magi2.types import Clip, StageName


class RefineStage(Stage[RefinerModel]):
    """Writes refined video latents. Its noise continues the preview's random stream, in this run or a later one."""

    name: ClassVar[StageName] = StageName.REFINE

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> RefinerModel:
        return load_refiner(
            self.context.weights.folder("refiner"),
            self.context.book.profile.architectures.refiner,
            device=self.context.device,
            compute_dtype=self.context.compute_dtype,
        )

    def make(self, clip: Clip, models: RefinerModel, folder: Path) -> Product:
        context, profile = self.context, self.context.book.profile
        settings = _settings(context)
        preview_recipe = context.recipe(StageName.PREVIEW, clip)
        preview = context.tensors(preview_recipe, preview_contract(profile), clip)
        generator = ClipGenerator.from_state(
            preview["generator_state"], self._generator_device(preview_recipe.key), device=noise_device(context)
        )
        noise = generator.refiner_noise(refine_contract(profile)["video"].shape)
        contract = encode_contract(profile, len(clip.figures))
        encoded = context.tensors(context.recipe(StageName.ENCODE, clip), contract, clip)
        text = encoded["text_embeds"].to(context.device)
        frames, height, width = refined_size(profile)
        grid = models.prepare_grid((frames, height, width))
        video = denoise_refiner(
            models,
            upsample_latents(preview["video"].to(context.device), (height, width)),
            noise.to(context.device),
            models.prepare(grid, text),
            models.prepare(grid, load_negative(context, clip, text)),
            num_steps=settings.steps,
            shift=settings.shift,
            guidance_scale=settings.guidance_scale,
            noise_index=settings.noise_index,
            on_step=self.on_step(clip),
        )
        files = self.save(folder, {"video": video}, refine_contract(profile))
        return Product(files=files, report={"steps": settings.steps})

    def _generator_device(self, preview_key: str) -> str:
        manifest = self.context.store.find(StageName.PREVIEW, preview_key)
        if manifest is None:
            raise ContractError(f"preview/{preview_key} vanished while it was read")
        return str(manifest.report["generator_device"])


def _settings(context: StageContext) -> RefinerSettings:
    settings = context.book.profile.refiner
    if settings is None:
        raise ContractError(f"profile {context.book.profile.name} has no refiner")
    return settings
