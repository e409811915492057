"""The deterministic structurer: a caption of the trained shape without a language model."""

from magi2.prompts.offline.structurer import STRUCTURER_VERSION, structure

__all__ = ["STRUCTURER_VERSION", "structure"]
