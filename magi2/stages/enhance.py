"""enhance: a prompt becomes the caption that the model was trained on, or passes as it is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.recipe import Recipe
from magi2.models.text_encoder.tokenizer import PromptTokenizer, load_prompt_tokenizer, require_at_most
from magi2.prompts.caption import GIVEN, Caption
from magi2.prompts.enhance import enhance
from magi2.recipes.book import encoder_text, prompt_figures
from magi2.recipes.captions import CAPTION, FALLBACK, caption_flags
from magi2.stages.base import Product, Stage
from magi2.types import Clip, StageName


class EnhanceStage(Stage[PromptTokenizer]):
    """Writes `caption.json`. Without an endpoint the prompt passes through; a fallback is flagged and stored as one.

    A caption that the encoder would refuse for its length is refused here, before an accelerator is taken for it.
    """

    name: ClassVar[StageName] = StageName.ENHANCE

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.book.enhance(clip)

    def load(self) -> PromptTokenizer:
        return load_prompt_tokenizer(self.context.weights.folder("text_encoder"))

    def make(self, clip: Clip, models: PromptTokenizer, folder: Path) -> Product:
        book = self.context.book
        caption = self._enhanced(clip) if clip.caption is None else Caption(clip.caption, None, GIVEN, GIVEN)
        text = book.profile.text
        if text.on_overflow == "refuse":
            require_at_most(len(models.tokenize(encoder_text(clip, caption.text))), text.max_tokens)
        path = folder / CAPTION
        path.write_bytes(caption.to_json())
        return Product(
            files={CAPTION: path},
            flags=(FALLBACK,) if caption.fallback else (),
            report={"mode": caption.mode_used, "findings": list(caption.findings), "usage": caption.usage},
            recipe=book.enhance(clip, caption.mode_used),
        )

    def _enhanced(self, clip: Clip) -> Caption:
        book = self.context.book
        preview = book.profile.preview
        return enhance(
            clip.prompt,
            images=prompt_figures(clip),
            mode=book.enhancement_mode,
            aspect_ratio=f"{preview.width}:{preview.height}",
            endpoint=self.context.endpoint,
            compact_format=book.profile.enhancement.compact_format,
        )

    def check_found(self, manifest: Manifest) -> None:
        """A caption is small, and every later stage's key hangs on its text: it is read."""
        super().check_found(manifest)
        self.context.store.fetch(self.name, manifest.key, CAPTION)

    def differences(self, manifest: Manifest, product: Product) -> tuple[str, ...]:
        """As `Stage.differences`; a language model's caption is not repeatable, and that is no mismatch."""
        return () if self.context.book.enhancement_mode.startswith("llm") else super().differences(manifest, product)

    def flags(self, manifest: Manifest, product: Product | None) -> tuple[str, ...]:
        """As `Stage.flags`, less what concerns another mode."""
        return caption_flags(super().flags(manifest, product), self.context.book.enhancement_mode)
