"""What a clip is conditioned on: text embeddings of both guidance branches, and reference images."""

# Shapes: L text tokens, C channels, h/w latent cells of a reference image

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.config import PreviewConfig


@dataclass(frozen=True, eq=False)
class ReferenceImage:
    """A reference image: normalised VAE latents [1, C, 1, h, w] fp32 and its figure token's embedding [C_text]."""

    latents: Tensor
    figure_embeds: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """Latent rows and columns."""
        return self.latents.shape[-2], self.latents.shape[-1]


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Text embeddings [1, L, C_text] of the prompt and of the negative prompt (which may have no token), and images.

    Images may differ in size.
    """

    text_embeds: Tensor
    negative_embeds: Tensor
    references: tuple[ReferenceImage, ...] = ()

    def check(self, config: PreviewConfig) -> None:
        """Raises: ContractError naming tensor, shape and expectation when these are not inputs of that model."""
        for name, embeds in (("text_embeds", self.text_embeds), ("negative_embeds", self.negative_embeds)):
            _expect(name, embeds, (1, None, config.text_in_channels))
        for index, image in enumerate(self.references):
            _expect(f"references[{index}].latents", image.latents, (1, config.video_in_channels, 1, None, None))
            _expect(f"references[{index}].figure_embeds", image.figure_embeds, (config.text_in_channels,))


def _expect(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(want not in (None, got) for want, got in zip(shape, actual, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ContractError(f"{name} has shape {list(actual)}, the model wants [{wanted}]")
