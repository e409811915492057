"""The settings of classifier-free guidance; torch-free, since profiles carry them.

Source: MAGI-2 preview inference code, evaluation settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from magi2.errors import ConfigError


@dataclass(frozen=True)
class GuidanceConfig:
    """How strongly prompt and negative prompt pull apart; the defaults are the values that were released.

    Scales are factors on the difference of the two velocities (1 = conditional only, 0 = unconditional only).
    The trick lowers the video scale of latent frames before `cfg_trick_start_frame` to at most `cfg_trick_value`.
    Dynamic guidance lowers video scales to at most `dynamic_cfg_cutoff_value` at timesteps below
    `dynamic_cfg_start_t` (0..1000). Skimming removes the part of a large scale that overshoots. `cfg_rescale` mixes
    in the conditional velocity's standard deviation, 0 = off and 1 = fully.
    Raises ConfigError naming the field when a value is negative, not finite or of the wrong type.
    """

    video_txt_guidance_scale: float = 5.0
    audio_txt_guidance_scale: float = 7.0
    use_cfg_trick: bool = False
    cfg_trick_start_frame: int = 13
    cfg_trick_value: float = 2.0
    use_dynamic_cfg: bool = False
    dynamic_cfg_start_t: int = 500
    dynamic_cfg_cutoff_value: float = 2.0
    use_skimmed_cfg_linear: bool = False
    skimmed_cfg_scale: float = 3.0
    cfg_rescale: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                valid, wanted = isinstance(value, bool), "true or false"
            elif isinstance(field.default, int):
                valid, wanted = type(value) is int and value >= 0, "an integer >= 0"
            else:
                valid, wanted = type(value) in (int, float) and math.isfinite(value) and value >= 0, "finite and >= 0"
            if not valid:
                raise ConfigError(f"guidance: {field.name} is {value!r}, must be {wanted}")
