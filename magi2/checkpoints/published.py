"""What the published weights folder holds: name, shape and dtype of every tensor, and into how many files it is cut.

Names and shapes come from the networks, built without data. They cover whatever the published code reads, and the
parts of the same networks that it leaves unread: the text encoder's last layers, the audio encoder. What lies in the
same files and belongs to other networks is not listed: the language model's head, vision tower and token prediction,
the diffusion model of Stable Audio Open, training state beside the turbo decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from magi2.config.profile import Architectures
from magi2.models.audio_vae import state_dict as audio
from magi2.models.audio_vae.config import config_from_json
from magi2.models.preview.config import BF16, Weights
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.quantised import E4M3
from magi2.models.preview.quantised_source import to_model_axes
from magi2.models.refiner.model import RefinerModel
from magi2.models.text_encoder import tower
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder

SAFETENSORS_DTYPES: Mapping[torch.dtype, str] = {torch.bfloat16: "BF16", torch.float32: "F32", E4M3: "F8_E4M3"}
"""The table's dtypes, as headers of files call them."""


@dataclass(frozen=True)
class TensorSpec:
    """A stored tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


SHARDS: Mapping[str, int] = {"text_encoder": 11, "preview": 56, "refiner": 3}
"""Files of the components that are cut into several. Where the published cuts lie is not known: they are even here."""

TEXT_CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "layer_types": 16 * (3 * ["linear_attention"] + ["full_attention"]),
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
}
"""The part of Qwen3.5-27B's `config.json` that describes its text model."""

TURBO_CONFIG: Mapping[str, Any] = asdict(PUBLISHED_TURBO_DECODER)
"""The keys of TurboV3-Wan22-TinyShallow_7_7.json that matter for decoding."""


def _oobleck(io_channels: Mapping[str, int], latent_dim: int, **more: bool) -> dict[str, Any]:
    sizes = {"channels": 128, "c_mults": [1, 2, 4, 8, 16], "strides": [2, 4, 4, 8, 8], "latent_dim": latent_dim}
    return {"type": "oobleck", "config": {**io_channels, **sizes, "use_snake": True, **more}}


AUDIO_CONFIG: Mapping[str, Any] = {
    "model_type": "autoencoder",
    "sample_rate": 44100,
    "model": {
        "pretransform": {
            "type": "autoencoder",
            "config": {
                "encoder": _oobleck({"in_channels": 2}, 128),
                "decoder": _oobleck({"out_channels": 2}, 64, final_tanh=False),
                "bottleneck": {"type": "vae"},
                "latent_dim": 64,
                "downsampling_ratio": 2048,
                "io_channels": 2,
            },
        }
    },
}
"""The autoencoder in Stable Audio Open 1.0's `model_config.json`."""


@cache
def published_tensors(architectures: Architectures, weights: Weights = BF16) -> Mapping[str, Mapping[str, TensorSpec]]:
    """Component to stored name to tensor, in the order of the networks; `architectures` are those of profile 1080p.

    With other `weights` those of the preview are as `magi2 checkpoint quantise` stores them.

    The text encoder is bf16, both transformers have the mixture of bf16 and fp32 that they compute with, the codecs are
    fp32. Only the sums of bytes speak for that: loaders cast whatever is stored.
    """
    with torch.device("meta"):
        preview, refiner = PreviewModel(architectures.preview, weights=weights), RefinerModel(architectures.refiner)
        wan: list[nn.Module] = [WanEncoder(architectures.video_vae), WanDecoder(architectures.video_vae)]
        turbo = TurboDecoder(PUBLISHED_TURBO_DECODER, compute_dtype=torch.float32)
    sound = audio.expected_tensors(config_from_json(AUDIO_CONFIG))
    return {
        "text_encoder": _text_encoder(),
        "preview": _specs(
            {
                name: to_model_axes(name, tensor) if tensor.dtype == E4M3 else tensor  # which leads back, too
                for name, tensor in preview.state_dict().items()
            }
        ),
        "refiner": _specs(refiner.state_dict()),
        "video_vae": {name: spec for half in wan for name, spec in _specs(half.state_dict()).items()},
        "turbo_vae": _specs(turbo.state_dict()),
        "audio_vae": {name: TensorSpec(shape, torch.float32) for name, shape in sound.items()},
    }


def _text_encoder() -> dict[str, TensorSpec]:
    config = tower.parse_config(TEXT_CONFIG)
    layers = tower.build_tower(config, num_layers=config.num_hidden_layers, dtype=torch.bfloat16)
    specs = {tower.PREFIX + name: spec for name, spec in _specs(layers.state_dict()).items()}
    return {**specs, f"{tower.PREFIX}norm.weight": TensorSpec((config.hidden_size,), torch.bfloat16)}


def _specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
