"""A complete random checkpoint in the published layout: every component, small widths, seeded weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from magi2.checkpoints.layout import COMPONENTS
from magi2.config.profile import Architectures
from magi2.errors import CheckpointError
from magi2.models.audio_vae.config import config_from_json
from magi2.models.audio_vae.init import tiny_audio_tensors
from magi2.models.checkpoint import INDEX_NAME
from magi2.models.preview import state_dict as preview_weights
from magi2.models.preview.model import PreviewModel
from magi2.models.refiner import loading as refiner_weights
from magi2.models.refiner.model import RefinerModel
from magi2.models.text_encoder.tiny import write_tiny_text_encoder
from magi2.models.turbo_vae.config import TINY_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.initialise import init_random_ as init_convolutions_

_SHARDS = 3
"""The published preview has 56 and the refiner 3; more than one is enough to prove that an index is read."""

TINY_AUDIO: Mapping[str, Any] = {
    "model_type": "autoencoder",
    "sample_rate": 44100,
    "model": {
        "pretransform": {
            "type": "autoencoder",
            "config": {
                "encoder": {
                    "type": "oobleck",
                    "config": {
                        "in_channels": 2,
                        "channels": 4,
                        "c_mults": [1, 2, 4, 8, 16],
                        "strides": [2, 4, 4, 8, 8],
                        "latent_dim": 128,
                        "use_snake": True,
                    },
                },
                "decoder": {
                    "type": "oobleck",
                    "config": {
                        "out_channels": 2,
                        "channels": 4,
                        "c_mults": [1, 2, 4, 8, 16],
                        "strides": [2, 4, 4, 8, 8],
                        "latent_dim": 64,
                        "use_snake": True,
                        "final_tanh": False,
                    },
                },
                "bottleneck": {"type": "vae"},
                "latent_dim": 64,
                "downsampling_ratio": 2048,
                "io_channels": 2,
            },
        }
    },
}


def make_tiny(root: Path, architectures: Architectures, *, seed: int) -> list[str]:
    """Write a random checkpoint of `architectures` to `root` and give back its components' names.

    The same seed gives the same bytes. A folder that holds the same checkpoint already is left as it is.
    Raises: CheckpointError when `root` holds something else.
    """
    marker, wanted = root / "tiny.json", _describe(architectures, seed)
    if marker.is_file() and marker.read_text() == wanted:
        return list(COMPONENTS)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise CheckpointError(
            f"{root} is no empty folder and holds no tiny checkpoint of seed {seed}", hint="name a new folder"
        )
    writers = {
        "text_encoder": _write_text_encoder,
        "preview": _write_preview,
        "refiner": _write_refiner,
        "video_vae": _write_video_vae,
        "turbo_vae": _write_turbo,
        "audio_vae": _write_audio,
    }
    for offset, (component, write) in enumerate(writers.items()):
        folder = root / COMPONENTS[component].folder
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, architectures, torch.Generator().manual_seed(seed * len(writers) + offset))
    marker.write_text(wanted)
    return list(writers)


def _describe(architectures: Architectures, seed: int) -> str:
    return json.dumps({"seed": seed, "architectures": architectures.model_dump(mode="json")}, indent=1) + "\n"


def _write_text_encoder(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    width = architectures.preview.text_in_channels
    write_tiny_text_encoder(folder, seed=generator.initial_seed(), hidden_size=width)


def _write_preview(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    model = PreviewModel(architectures.preview)
    preview_weights.init_random_(model, generator)
    _save_sharded(folder, model.state_dict())


def _write_refiner(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    model = RefinerModel(architectures.refiner)
    refiner_weights.init_random_(model, generator)
    _save_sharded(folder, model.state_dict())


def _write_video_vae(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    tensors: dict[str, Tensor] = {}
    for half in (WanEncoder(architectures.video_vae), WanDecoder(architectures.video_vae)):
        init_convolutions_(half, generator)
        tensors |= half.state_dict()
    torch.save(tensors, folder / "Wan2.2_VAE.pth")


def _write_turbo(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    decoder = TurboDecoder(TINY_TURBO_DECODER, compute_dtype=torch.float32)
    init_convolutions_(decoder, generator)
    (folder / "TurboV3-Wan22-TinyShallow_7_7.json").write_text(json.dumps(asdict(TINY_TURBO_DECODER), indent=1))
    torch.save({"ema_state_dict": decoder.state_dict()}, folder / "checkpoint.ckpt")


def _write_audio(folder: Path, architectures: Architectures, generator: torch.Generator) -> None:
    (folder / "model_config.json").write_text(json.dumps(TINY_AUDIO, indent=1))
    tensors = tiny_audio_tensors(config_from_json(TINY_AUDIO), generator)
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _save_sharded(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(_SHARDS):
        file_name = f"model-{shard + 1:05d}-of-{_SHARDS:05d}.safetensors"
        own = names[shard::_SHARDS]
        save_file({name: tensors[name].detach().contiguous() for name in own}, folder / file_name)
        weight_map |= dict.fromkeys(own, file_name)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=1))
