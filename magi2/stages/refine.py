"""refine: the preview's video latents are enlarged to delivery size and denoised again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from magi2 import platform
from magi2.artifacts.recipe import Recipe
from magi2.config.profile import RefinerSettings
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.models.refiner.context import Refiner
from magi2.models.refiner.loading import load_refiner
from magi2.recipes.captions import condemned_if_damaged
from magi2.sampling.noise import ClipGenerator
from magi2.sampling.refine import RefinerState, denoise_refiner, upsample_latents
from magi2.stages.base import Product
from magi2.stages.context import StageContext
from magi2.stages.contracts import encode_contract, preview_contract, refine_contract, refined_size
from magi2.stages.layouts import check_refiner_room
from magi2.stages.preview import load_negative, noise_device
from magi2.stages.snapshots import load_snapshot
from magi2.stages.teamwork import TeamStage
from magi2.types import Clip, StageName


@dataclass(frozen=True)
class RefineInputs:
    """The preview's latents and random stream, the texts, and the state to go on from if there is one; on the host."""

    video: Tensor
    generator_state: Tensor
    generator_device: str
    text: Tensor
    negative: Tensor
    state: Mapping[str, Tensor] | None = None


class RefineStage(TeamStage[Refiner, RefineInputs, Tensor]):
    """Writes refined video latents. Its noise continues the preview's random stream, in this run or a later one."""

    name: ClassVar[StageName] = StageName.REFINE
    kernels = ("window attention",)

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> Refiner:
        return load_refiner(
            self.context.weights.folder("refiner"),
            self.context.book.profile.architectures.refiner,
            device=self.context.device,
            compute_dtype=self.context.compute_dtype,
            mesh=self.context.team.mesh,
        )

    def check_memory(self) -> None:
        context, profile = self.context, self.context.book.profile
        if context.accelerator.name == "cpu":
            return
        card_bytes = platform.memory_stats(accelerator=context.accelerator).total
        check_refiner_room(context.team.mesh.layout, profile, card_bytes)

    def read(self, clip: Clip) -> RefineInputs:
        context, profile = self.context, self.context.book.profile
        recipe = context.recipe(StageName.PREVIEW, clip)
        preview = context.tensors(recipe, preview_contract(profile), clip)
        contract = encode_contract(profile, len(clip.figures))
        text = context.tensors(context.recipe(StageName.ENCODE, clip), contract, clip)["text_embeds"]
        inputs = RefineInputs(
            video=preview["video"],
            generator_state=preview["generator_state"],
            generator_device=self._generator_device(recipe.key),
            text=text,
            negative=load_negative(context, clip, text),
        )
        state = load_snapshot(context.store, self.recipe(clip), lambda: self._noise(inputs)[0].state())
        return replace(inputs, state=state)

    def compute(self, clip: Clip, inputs: RefineInputs, models: Refiner, folder: Path | None) -> Tensor:
        context, settings = self.context, _settings(self.context)
        generator, noise = self._noise(inputs)
        frames, height, width = refined_size(context.book.profile)
        grid = models.prepare_grid((frames, height, width))
        state = None if inputs.state is None else RefinerState.from_tensors(inputs.state)
        self.begin_steps(clip, state.step if state else 0, settings.steps)
        with self.snapshots(clip, generator.state()) as save:
            return denoise_refiner(
                models,
                upsample_latents(inputs.video.to(context.device), (height, width)),
                noise.to(context.device),
                models.prepare(grid, inputs.text.to(context.device)),
                models.prepare(grid, inputs.negative.to(context.device)),
                num_steps=settings.steps,
                shift=settings.shift,
                guidance_scale=settings.guidance_scale,
                noise_index=settings.noise_index,
                on_step=self.on_step(clip),
                resume=state,
                snapshot_every=context.snapshot_every,
                on_snapshot=save,
            )

    def write(self, clip: Clip, outputs: Tensor, folder: Path) -> Product:
        files = self.save(folder, {"video": outputs}, refine_contract(self.context.book.profile))
        return Product(files=files, report={"steps": _settings(self.context).steps})

    def _noise(self, inputs: RefineInputs) -> tuple[ClipGenerator, Tensor]:
        """The clip's random stream after its last draw, and what was drawn."""
        generator = ClipGenerator.from_state(
            inputs.generator_state, inputs.generator_device, device=noise_device(self.context)
        )
        noise = generator.refiner_noise(refine_contract(self.context.book.profile)["video"].shape)
        return generator, noise

    def _generator_device(self, preview_key: str) -> str:
        store = self.context.store
        manifest = store.find(StageName.PREVIEW, preview_key)
        if manifest is None:
            raise ContractError(f"preview/{preview_key} vanished while it was read")
        with condemned_if_damaged(store, StageName.PREVIEW, preview_key):
            device = manifest.report.get("generator_device")
            if not isinstance(device, str):
                message = f"preview/{preview_key}: its report names no device of its random stream, but {device!r:.80}"
                raise CorruptedArtifactError(message)
            return device


def _settings(context: StageContext) -> RefinerSettings:
    settings = context.book.profile.refiner
    if settings is None:
        raise ContractError(f"profile {context.book.profile.name} has no refiner")
    return settings
