"""The preview transformer: architecture, packing, loading."""

from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.config import (
    AttnGating,
    AttnSinks,
    DataProxyConfig,
    MhcConfig,
    MoeConfig,
    PreviewConfig,
    preview_config_from_dict,
)
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.lengths import audio_latent_count, latent_size, video_latent_count
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.ops import PreviewOps
from magi2.models.preview.state_dict import init_random_, load_preview

__all__ = [
    "AttnGating",
    "AttnSinks",
    "ClipLayout",
    "Conditioning",
    "DataProxyConfig",
    "MhcConfig",
    "MoeConfig",
    "PreviewConfig",
    "PreviewModel",
    "PreviewOps",
    "ReferenceImage",
    "audio_latent_count",
    "init_random_",
    "latent_size",
    "load_preview",
    "preview_config_from_dict",
    "video_latent_count",
]
