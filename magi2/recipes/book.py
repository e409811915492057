"""What determines each artifact of a clip, as recipes: pure and torch-free, so that planning needs no model.

A recipe names only what matters to its stage. Nothing positional (order, shard, host, time) ever enters one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import cached_property, lru_cache

from magi2.artifacts.recipe import JSON, Recipe, Settled, sha256_text
from magi2.config.profile import Profile, evaluated_settings
from magi2.models.preview.config import BF16
from magi2.models.preview.lengths import PREVIEW_FPS, video_latent_count
from magi2.prompts.caption import GIVEN
from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import Task
from magi2.prompts.figures import Figure, add_figure_hint
from magi2.prompts.instructions import template_digest
from magi2.prompts.offline import STRUCTURER_VERSION
from magi2.prompts.words import words_digest
from magi2.recipes.marking import UNSIGNED, Marking, marked_texts, marking_config
from magi2.types import ARTIFACT_FOLDERS, NEGATIVE, Clip, StageName

NUMERICS_VERSION: Mapping[str, int] = dict.fromkeys(ARTIFACT_FOLDERS, 1) | {StageName.PREVIEW: 2}
"""Raised for a folder of artifacts whenever a change of code changes the values of those made for it."""

REFINED_FPS = Fraction(25)
_CHAINS = 512
"""Clips whose recipes are remembered: those of a shard; of each its recipes take 6 KiB."""


def frame_rate(profile: Profile) -> Fraction:
    """Native frames per second: 12.5 without the refiner, 25 with it (spec of the published pipeline)."""
    return Fraction(PREVIEW_FPS) if profile.refiner is None else REFINED_FPS


def delivered_frames(profile: Profile) -> int:
    """Native frames of a clip: 125 without the refiner, 249 with it. The first latent frame decodes to one frame."""
    latents = video_latent_count(profile.duration_s)
    return 4 * (latents if profile.refiner is None else 2 * latents - 1) - 3


def prompt_figures(clip: Clip) -> tuple[Figure, ...]:
    """The clip's images as the prompt side sees them."""
    return tuple(Figure(f.number, f"<Figure {f.number}>", str(f.path), f.sha256) for f in clip.figures)


def encoder_text(clip: Clip, caption: str) -> str:
    """The text that the encoder reads for a clip: its caption with the figure hint, structured captions compacted."""
    return compact_prompt(add_figure_hint(caption, figures=prompt_figures(clip)))


class RecipeBook:
    """The recipes of one profile on one set of weights.

    `fingerprints` maps a component to its SHA-256, `marking` is what the deployment has files say. The chain of a clip
    is worked out once for all its stages.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        fingerprints: Mapping[str, str],
        negative_prompt: str | None,
        enhancement_mode: str,
        enhancement_model: str | None,
        marking: Marking = UNSIGNED,
    ) -> None:
        self.profile = profile
        self.fingerprints = fingerprints
        self.negative_prompt = negative_prompt
        self.enhancement_mode = enhancement_mode
        self.enhancement_model = enhancement_model
        self.marking = marking
        self._chain = lru_cache(maxsize=_CHAINS)(self._make_chain)

    def enhance(self, clip: Clip, mode: str | None = None) -> Recipe:
        """The caption's recipe; `mode` overrides the profile's (a fallback is stored under the mode that ran).

        Of a clip that brings its caption the recipe is of that alone, whatever the mode.
        """
        if clip.caption is not None:
            given = {"prompt": sha256_text(clip.prompt), "caption": sha256_text(clip.caption)}
            return self._recipe(StageName.ENHANCE, {"mode": GIVEN}, external=given)
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

    @cached_property
    def negative(self) -> Recipe | None:
        """The negative prompt's embedding, shared by all clips; None when the profile uses none."""
        if self.negative_prompt is None:
            return None
        external = {"text": sha256_text(compact_prompt(self.negative_prompt))}
        return self._recipe(NEGATIVE, self._text, checkpoints=("text_encoder",), external=external)

    def chain(self, clip: Clip, caption: str) -> Mapping[StageName, Recipe]:
        """The recipes of every stage after enhance, in order, for a clip whose enhanced prompt is `caption`."""
        return self._chain(clip, caption)

    def weights(self, clip: Clip, caption: str) -> dict[str, str]:
        """The fingerprints of all weights that a clip depends on, by component."""
        recipes = [*self.chain(clip, caption).values(), *((self.negative,) if self.negative else ())]
        return {name: digest for recipe in recipes for name, digest in recipe.checkpoints.items()}

    def _make_chain(self, clip: Clip, caption: str) -> Mapping[StageName, Recipe]:
        encode = self._encode(clip, caption)
        text = {"encode": encode.key}
        texts = text | ({NEGATIVE: self.negative.key} if self.negative else {})
        conditions = texts if self.profile.preview.is_guided else text
        preview = self._recipe(
            StageName.PREVIEW, self._preview, checkpoints=("preview",), seed=clip.seed, inputs=conditions
        )
        chain = {StageName.ENCODE: encode, StageName.PREVIEW: preview}
        video = preview
        if self.profile.refiner is not None:
            inputs = {"preview": preview.key, **texts}
            video = self._recipe(StageName.REFINE, self._refine, checkpoints=("refiner",), inputs=inputs)
            chain[StageName.REFINE] = video
        video_decoder = "turbo_vae" if self.profile.decode.decoder == "turbo" else "video_vae"
        decode = self._recipe(
            StageName.DECODE,
            self._decode,
            checkpoints=(video_decoder, "audio_vae"),
            inputs={"video": video.key, "audio": preview.key},
        )
        texts = marked_texts(self.profile, clip.prompt, caption)
        mux = mux_recipe(self.profile, self._marking, texts, clip.seed, decode.key)
        return chain | {StageName.DECODE: decode, StageName.MUX: mux}

    def _encode(self, clip: Clip, caption: str) -> Recipe:
        config, checkpoints = dict(self._text), ["text_encoder"]
        if clip.figures:
            preview = self.profile.preview
            config |= {"width": preview.width, "height": preview.height, "ref_image_type": preview.ref_image_type}
            if treated := _treatments(clip, preview.background):
                config["images"] = treated
            config["video_vae"] = self._video_vae
            checkpoints.append("video_vae")
        external = {"text": sha256_text(encoder_text(clip, caption))} | _images(clip)
        return self._recipe(StageName.ENCODE, config, checkpoints=checkpoints, external=external)

    @cached_property
    def _video_vae(self) -> dict[str, JSON]:
        return Settled.of(asdict(self.profile.architectures.video_vae), "video_vae")

    @cached_property
    def _text(self) -> dict[str, JSON]:
        text = self.profile.text
        settings = {"max_tokens": text.max_tokens, "on_overflow": text.on_overflow}
        return Settled.of(settings | {"compute_dtype": self.profile.compute_dtype}, "text")

    @cached_property
    def _preview(self) -> dict[str, JSON]:
        settings = self.profile.preview.model_dump(mode="json", exclude={"ref_image_type", "reference_background"})
        more: dict[str, JSON] = {
            "architecture": asdict(self.profile.architectures.preview),
            "compute_dtype": self.profile.compute_dtype,
            "noise_device": self.profile.noise_device,
        }
        if self.profile.compute.weights != BF16:
            more["weights"] = self.profile.compute.weights
        return Settled.of(evaluated_settings(settings) | more, "preview")

    @cached_property
    def _refine(self) -> dict[str, JSON]:
        settings = self.profile.refiner.model_dump(mode="json") if self.profile.refiner else {}
        more = {
            "architecture": asdict(self.profile.architectures.refiner),
            "compute_dtype": self.profile.compute_dtype,
        }
        return Settled.of(settings | more, "refiner")

    @cached_property
    def _decode(self) -> dict[str, JSON]:
        wan = self.profile.decode.decoder == "wan"
        more = {
            "compute_dtype": self.profile.compute_dtype,
            "fps": str(frame_rate(self.profile)),
            **({"video_vae": self._video_vae} if wan else {}),
        }
        return Settled.of(self.profile.decode.model_dump(mode="json") | more, "decode")

    @cached_property
    def _marking(self) -> dict[str, JSON]:
        return Settled.of(marking_config(self.profile, self.marking), "marking")

    def _recipe(
        self,
        folder: str,
        config: Mapping[str, JSON],
        *,
        checkpoints: Sequence[str] = (),
        seed: int | None = None,
        external: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> Recipe:
        return Recipe(
            stage=folder,
            version=NUMERICS_VERSION[folder],
            config=config,
            checkpoints={name: self.fingerprints[name] for name in checkpoints},
            seed=seed,
            external=external or {},
            inputs=inputs or {},
        )


def mux_recipe(
    profile: Profile, marking: Mapping[str, JSON], texts: Mapping[str, str], seed: int, decode_key: str
) -> Recipe:
    """The recipe of the delivered file of a decoded clip: no weights are in it.

    `marking` is what `marking_config` gives, `texts` the digests of the clip's own texts that the file holds.
    """
    return Recipe(
        stage=StageName.MUX.value,
        version=NUMERICS_VERSION[StageName.MUX],
        config=profile.delivery.encoding() | {"fps": str(frame_rate(profile)), "marking": marking},
        seed=seed,
        external=texts,
        inputs={"decode": decode_key},
    )


def _treatments(clip: Clip, background: tuple[int, int, int] | None) -> dict[str, JSON]:
    """What is done to images before they are encoded, by figure; those to which nothing is done are not there."""
    values: dict[str, JSON] = {"flattened": list(background or ()), "converted": "sRGB"}
    return {str(f.number): {name: values[name] for name in f.treatment} for f in clip.figures if f.treatment}


def _images(clip: Clip) -> dict[str, str]:
    return {f"image_{figure.number}": figure.sha256 for figure in clip.figures}
