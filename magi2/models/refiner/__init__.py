"""The refiner: second-stage upscaler of video latents."""

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.loading import init_random_, load_refiner
from magi2.models.refiner.model import RefinerContext, RefinerModel
from magi2.models.refiner.windows import WindowGrid, WindowGroup

__all__ = [
    "RefinerConfig",
    "RefinerContext",
    "RefinerModel",
    "WindowGrid",
    "WindowGroup",
    "init_random_",
    "load_refiner",
]
