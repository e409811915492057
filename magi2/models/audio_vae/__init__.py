"""Audio autoencoder of Stable Audio Open: the decoding half, and the resampling to 44.1 kHz."""

from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig, config_from_json, read_audio_config
from magi2.models.audio_vae.init import init_random_, tiny_audio_tensors
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.audio_vae.resample import DELIVERY_RATIO, resample_fourier
from magi2.models.audio_vae.state_dict import expected_tensors, load_audio_decoder

__all__ = [
    "DELIVERY_RATIO",
    "AudioDecoder",
    "AudioVaeConfig",
    "OobleckConfig",
    "config_from_json",
    "expected_tensors",
    "init_random_",
    "load_audio_decoder",
    "read_audio_config",
    "resample_fourier",
    "tiny_audio_tensors",
]
