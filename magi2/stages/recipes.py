"""What determines each artifact of a clip, as recipes: pure and torch-free, so that planning needs no model.

A recipe names only what matters to its stage. Nothing positional (order, shard, host, time) ever enters one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction

from magi2.artifacts.recipe import JSON, Recipe, sha256_text
from magi2.config.profile import Profile
from magi2.models.preview.lengths import video_latent_count
from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import Task
from magi2.prompts.figures import Figure, add_figure_hint
from magi2.prompts.instructions import template_digest
from magi2.prompts.offline import STRUCTURER_VERSION
from magi2.prompts.words import words_digest
from magi2.types import Clip, StageName

NUMERICS_VERSION: Mapping[StageName, int] = dict.fromkeys(StageName, 1)
"""Raised for a stage whenever a change of code changes the values that it makes."""

PREVIEW_FPS = Fraction(25, 2)
REFINED_FPS = Fraction(25)


def frame_rate(profile: Profile) -> Fraction:
    """Native frames per second: 12.5 without the refiner, 25 with it (spec of the published pipeline)."""
    return PREVIEW_FPS if profile.refiner is None else REFINED_FPS


def delivered_frames(profile: Profile) -> int:
    """Native frames of a clip: 125 without the refiner, 249 with it. The first latent frame decodes to one frame."""
    latents = video_latent_count(profile.duration_s)
    return 4 * (latents if profile.refiner is None else 2 * latents - 1) - 3


def prompt_figures(clip: Clip) -> tuple[Figure, ...]:
    """The clip's images as the prompt side sees them."""
    return tuple(Figure(figure.number, f"<Figure {figure.number}>", str(figure.path)) for figure in clip.figures)


def encoder_text(clip: Clip, caption: str) -> str:
    """The text that the encoder reads for a clip: its caption with the figure hint, structured captions compacted."""
    return compact_prompt(add_figure_hint(caption, figures=prompt_figures(clip)))


@dataclass(frozen=True)
class RecipeBook:
    """The recipes of one profile on one set of weights. `fingerprints` maps a component to its SHA-256."""

    profile: Profile
    fingerprints: Mapping[str, str]
    negative_prompt: str | None
    enhancement_mode: str
    enhancement_model: str | None

    def enhance(self, clip: Clip, mode: str | None = None) -> Recipe:
        """The caption's recipe; `mode` overrides the profile's (a fallback is stored under the mode that ran)."""
        mode = mode or self.enhancement_mode
        config: dict[str, JSON] = {"mode": mode}
        external = {"prompt": sha256_text(clip.prompt)}
        if mode != "off":
            preview, compact_format = self.profile.preview, self.profile.enhancement.compact_format
            task: Task = "i2v" if clip.figures else "t2v"
            config |= {
                "aspect_ratio": f"{preview.width}:{preview.height}",
                "compact_format": compact_format,
                "figures": [figure.number for figure in clip.figures],
            }
            if mode == "offline":
                config["structurer"] = STRUCTURER_VERSION
                external["words"] = words_digest()
            else:
                config["model"] = self.enhancement_model
                external |= {"template": template_digest(task, compact_format), **_images(clip)}
        return self._recipe(StageName.ENHANCE, config, external=external)

    def negative(self) -> Recipe | None:
        """The negative prompt's embedding, shared by all clips; None when the profile uses none."""
        if self.negative_prompt is None:
            return None
        return self._recipe(
            StageName.NEGATIVE,
            self._text_config(),
            checkpoints=["text_encoder"],
            external={"text": sha256_text(compact_prompt(self.negative_prompt))},
        )

    def encode(self, clip: Clip, caption: str) -> Recipe:
        """Text, figure and reference-image embeddings of a clip whose enhanced prompt is `caption`."""
        config, checkpoints = self._text_config(), ["text_encoder"]
        if clip.figures:
            preview = self.profile.preview
            config |= {"width": preview.width, "height": preview.height, "ref_image_type": preview.ref_image_type}
            config["video_vae"] = asdict(self.profile.architectures.video_vae)
            checkpoints.append("video_vae")
        external = {"text": sha256_text(encoder_text(clip, caption))} | _images(clip)
        return self._recipe(StageName.ENCODE, config, checkpoints=checkpoints, external=external)

    def preview(self, clip: Clip, caption: str) -> Recipe:
        """Video and audio latents of the preview stage."""
        config = self.profile.preview.model_dump(mode="json", exclude={"ref_image_type"}) | {
            "architecture": asdict(self.profile.architectures.preview),
            "compute_dtype": self.profile.compute_dtype,
            "noise_device": self.profile.noise_device,
        }
        inputs = {"encode": self.encode(clip, caption).key} | self._negative_input()
        return self._recipe(StageName.PREVIEW, config, checkpoints=["preview"], seed=clip.seed, inputs=inputs)

    def refine(self, clip: Clip, caption: str) -> Recipe | None:
        """Video latents at delivery size; None in a profile without refiner."""
        if self.profile.refiner is None:
            return None
        config = self.profile.refiner.model_dump(mode="json") | {
            "architecture": asdict(self.profile.architectures.refiner),
            "compute_dtype": self.profile.compute_dtype,
        }
        inputs = {
            "preview": self.preview(clip, caption).key,
            "encode": self.encode(clip, caption).key,
        } | self._negative_input()
        return self._recipe(StageName.REFINE, config, checkpoints=["refiner"], inputs=inputs)

    def decode(self, clip: Clip, caption: str) -> Recipe:
        """Lossless picture and sound."""
        config = self.profile.decode.model_dump(mode="json") | {
            "compute_dtype": self.profile.compute_dtype,
            "fps": str(frame_rate(self.profile)),
        }
        video_decoder = "turbo_vae" if self.profile.decode.decoder == "turbo" else "video_vae"
        preview_key = self.preview(clip, caption).key
        refined = self.refine(clip, caption)
        inputs = {"video": refined.key if refined else preview_key, "audio": preview_key}
        return self._recipe(StageName.DECODE, config, checkpoints=[video_decoder, "audio_vae"], inputs=inputs)

    def mux(self, clip: Clip, caption: str) -> Recipe:
        """The delivered file, its poster and contact sheet."""
        config = asdict(self.profile.delivery) | {"fps": str(frame_rate(self.profile))}
        inputs = {"decode": self.decode(clip, caption).key}
        return self._recipe(StageName.MUX, config, seed=clip.seed, inputs=inputs)

    def _text_config(self) -> dict[str, JSON]:
        text = self.profile.text
        return {
            "max_tokens": text.max_tokens,
            "on_overflow": text.on_overflow,
            "compute_dtype": self.profile.compute_dtype,
        }

    def _negative_input(self) -> dict[str, str]:
        negative = self.negative()
        return {"negative": negative.key} if negative else {}

    def _recipe(
        self,
        stage: StageName,
        config: Mapping[str, JSON],
        *,
        checkpoints: list[str] | None = None,
        seed: int | None = None,
        external: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> Recipe:
        return Recipe(
            stage=stage.value,
            version=NUMERICS_VERSION[stage],
            config=config,
            checkpoints={name: self.fingerprints[name] for name in checkpoints or []},
            seed=seed,
            external=external or {},
            inputs=inputs or {},
        )


def _images(clip: Clip) -> dict[str, str]:
    return {f"image_{figure.number}": figure.sha256 for figure in clip.figures}
