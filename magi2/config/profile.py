"""A profile: everything that decides a clip's bits besides its prompt, its image and its seed.

Defaults are the published settings, also where the upstream code's own defaults differ when a field is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from magi2.config.labels import named_label
from magi2.config.settable import ROW, RowSettable
from magi2.delivery.names import check_template
from magi2.errors import ConfigError, InputError
from magi2.inputs.limits import MAX_PROMPT_CHARS
from magi2.inputs.readable import readable
from magi2.inputs.text import is_name, shown
from magi2.media.delivery import BESIDE_ENCODING, CONSENT, PLACEMENT, DeliverySpec
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.refiner.config import RefinerConfig
from magi2.models.video_vae.config import WanVaeConfig
from magi2.sampling.guidance_config import GuidanceConfig
from magi2.sampling.schedule import EVERY_STEP, GUIDED, Schedule
from magi2.types import Expect, StageName, profile_stages

DURATION_S = 10
LATENT_STRIDE = 16
LOSSLESS = "lossless"
"""The tier that evaluates every step; the others are schedules of the profile."""
WHITE = (255, 255, 255)
"""As the borders are that references get."""

DELIVERY_OF_ROWS = ("codec", "crf", "preset", "fit", "pad_last_frame")
"""What a row may set of how its file is made: sizes come with a profile, the rest are marks, threads and code."""
TITLED_CHARS = 24
"""Of a value in a profile's title."""

Level = Annotated[int, Field(ge=0, le=255)]


class Section(BaseModel):
    """Base of every part of a profile: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sized(Section):
    """A picture size in pixels; both sides are multiples of the latent stride, never floored behind the user's back."""

    width: int = Field(ge=32, le=4096, description="pixels")
    height: int = Field(ge=32, le=4096, description="pixels")

    @field_validator("width", "height")
    @classmethod
    def _whole_latents(cls, value: int) -> int:
        if value % LATENT_STRIDE:
            nearest = round(value / LATENT_STRIDE) * LATENT_STRIDE
            raise ValueError(f"must be a multiple of {LATENT_STRIDE}, the nearest is {nearest}")
        return value


class Architectures(Section):
    """The networks' shapes; in YAML each is the name of a file in `configs/models/`."""

    preview: PreviewConfig
    refiner: RefinerConfig
    video_vae: WanVaeConfig


class TextSettings(Section):
    max_tokens: int = Field(7000, ge=1, description="tokens the encoder reads")
    on_overflow: Annotated[Literal["refuse", "truncate"], ROW] = "refuse"
    use_negative_prompt: Annotated[bool, ROW] = True
    negative_prompt: str = Field("negative_prompt.txt", description="file, relative to the configs folder")
    negative_text: Annotated[str | None, ROW] = Field(
        None,
        max_length=MAX_PROMPT_CHARS,
        description="in place of the file's text",
        exclude_if=lambda value: value is None,  # so that profiles without it keep their digests
    )

    @field_validator("negative_text")
    @classmethod
    def _as_readers_see_it(cls, value: str | None) -> str | None:
        try:
            return value and readable(value, "the text")
        except InputError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _text_is_used(self) -> Self:
        if self.negative_text is not None and not self.use_negative_prompt:
            raise ValueError("negative_text is given where use_negative_prompt is off: leave it out, or switch it on")
        return self


class EnhancementSettings(Section):
    mode: Literal["auto", "off", "offline", "llm", "llm-then-offline", "llm-strict"] = Field(
        "auto", description="auto: llm when an endpoint is configured, else off"
    )
    compact_format: Annotated[Literal["markdown", "json"], ROW] = "markdown"


Quality = Literal["lossless", "high", "draft"]


class PreviewSettings(Sized):
    steps: Annotated[int, ROW] = Field(100, ge=1, le=1000)
    shift: Annotated[float, ROW] = Field(7.0, gt=0)
    guidance: Annotated[GuidanceConfig, ROW] = GuidanceConfig()
    quality: Annotated[Quality, ROW] = Field(
        "lossless", description="high and draft are named schedules", exclude_if=lambda value: value == LOSSLESS
    )
    schedule: Annotated[Schedule | None, ROW] = Field(
        None, description="in place of quality", exclude_if=lambda value: value is None
    )
    tiers: dict[Quality, dict[int, Schedule]] = Field(
        {},
        description="schedules by number of steps; in YAML the name of a file in configs/tiers/",
        exclude_if=lambda value: not value,
    )
    use_ref_for_uncond: Annotated[bool, ROW] = True
    ref_image_type: Annotated[Literal["original", "square"], ROW] = "original"
    reference_background: Annotated[Literal["refuse"] | tuple[Level, Level, Level], ROW] = Field(
        WHITE,
        description="red, green and blue behind transparent parts of references; refuse: take none that has such parts",
        exclude_if=lambda value: value == WHITE,  # so that profiles without it keep their digests
    )

    @property
    def background(self) -> tuple[int, int, int] | None:
        """What shows where a reference is transparent; None when such references are refused."""
        return None if self.reference_background == "refuse" else self.reference_background

    @model_validator(mode="after")
    def _schedules_fit(self) -> Self:
        if LOSSLESS in self.tiers:
            raise ValueError(f"tiers: {LOSSLESS} is no schedule, it evaluates every step")
        for tier, by_steps in self.tiers.items():
            for steps, schedule in by_steps.items():
                if reason := schedule.objection(steps):
                    raise ValueError(f"tiers.{tier}.{steps}: {reason}")
        if self.schedule is not None:
            if "quality" in self.model_fields_set:
                raise ValueError(f"quality {self.quality} names a schedule, and schedule is another: give one of them")
            if reason := self.schedule.objection(self.steps):
                raise ValueError(f"schedule: {reason}")
        elif self.quality != LOSSLESS and self.steps not in self.tiers.get(self.quality, {}):
            known = ", ".join(map(str, self.tiers.get(self.quality, {}))) or "none"
            raise ValueError(
                f"quality {self.quality} has no schedule for {self.steps} steps, it is known for {known}; "
                "magi2 schedule find makes one, or give a schedule"
            )
        return self

    @property
    def evaluated(self) -> Schedule:
        """Which steps evaluate what: by the schedule or the tier, resolved."""
        named = EVERY_STEP if self.quality == LOSSLESS else self.tiers[self.quality][self.steps]
        return (self.schedule or named).resolved(self.steps) or EVERY_STEP

    @property
    def is_guided(self) -> bool:
        """Whether any step evaluates the unconditional branch."""
        return GUIDED in self.evaluated.counts(self.steps)


class RefinerSettings(Sized):
    steps: Annotated[int, ROW] = Field(5, ge=1, le=1000)
    shift: Annotated[float, ROW] = Field(5.0, gt=0)
    guidance_scale: Annotated[float, ROW] = Field(2.0, ge=0)
    noise_index: Annotated[int, ROW] = Field(220, ge=0, le=999)


class DecodeSettings(Section):
    decoder: Literal["turbo", "wan"] = "turbo"
    rounding: Annotated[Literal["round", "truncate"], ROW] = Field(
        "round", description="float to 8 bit; truncate is upstream's"
    )


class ComputeSettings(Section):
    """How the networks compute, where that is a choice by the hardware."""

    weights: Weights = Field(BF16, description="of the preview: e4m3 for routed experts, or for all large products")


class QualitySettings(Section):
    """What people expect of clips: it decides what counts as a defect, so it is in no recipe and no digest."""

    expect: Expect = Expect()


class Profile(Section):
    """One resolved profile. `digest()` identifies it; it is stored with everything it made."""

    name: str
    description: str = ""
    experimental: bool = Field(
        False,
        description="nobody says that the model was trained for such sizes",
        exclude_if=lambda value: not value,
    )
    duration_s: int = DURATION_S
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    noise_device: Literal["cpu", "accelerator"] = Field(
        "cpu", description="cpu: one seed, same noise everywhere; accelerator: upstream's stream"
    )
    compute: ComputeSettings = Field(
        ComputeSettings(),
        exclude_if=lambda value: value == ComputeSettings(),  # so that bf16 profiles keep their digests
    )
    architectures: Architectures
    text: TextSettings = TextSettings()
    enhancement: EnhancementSettings = EnhancementSettings()
    preview: PreviewSettings
    refiner: RefinerSettings | None = None
    decode: DecodeSettings = DecodeSettings()
    delivery: Annotated[DeliverySpec, RowSettable(DELIVERY_OF_ROWS)] = DeliverySpec()
    quality: QualitySettings = QualitySettings()
    changed: dict[str, Any] = Field(
        {}, description="what a row changed, by dotted key; nobody writes it", exclude_if=lambda value: not value
    )

    @property
    def title(self) -> str:
        """The name, and what rows changed: `demo + preview.steps=4`."""
        changes = (f"{key}={_short(value)}" for key, value in self.changed.items())
        return " + ".join([self.name, *([", ".join(changes)] if self.changed else [])])

    @field_validator("duration_s")
    @classmethod
    def _ten_seconds_only(cls, value: int) -> int:
        if value != DURATION_S:
            raise ValueError(f"the model was trained on clips of {DURATION_S} s and makes no other length")
        return value

    @field_validator("delivery", mode="before")
    @classmethod
    def _label_by_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and isinstance(label := value.get("label"), str):
            return {**value, "label": named_label(label)}
        return value

    @model_validator(mode="after")
    def _delivery_fits(self) -> Self:
        (width, height), size = self.decoded_size, self.delivery.size
        if size and self.delivery.fit == "crop" and (size[0] > width or size[1] > height):
            raise ValueError(
                f"delivery {size[0]}x{size[1]} cannot be cropped from {width}x{height}; "
                "use fit: cover, contain or scale"
            )
        return self

    @field_validator("delivery")
    @classmethod
    def _delivery_has_names(cls, value: DeliverySpec) -> DeliverySpec:
        if value.target is not None and not is_name(value.target):
            raise ValueError("target is no name of one: addresses and folders stand in MAGI2_DELIVERY_TARGETS alone")
        if value.name is not None:
            try:
                check_template(value.name)
            except InputError as error:
                raise ValueError(str(error)) from None
        return value

    @property
    def decoded_size(self) -> tuple[int, int]:
        """Width and height of the picture before it is fitted to the delivery."""
        decoded = self.refiner or self.preview
        return decoded.width, decoded.height

    @property
    def delivered_size(self) -> tuple[int, int]:
        """Width and height of the delivered picture."""
        return self.delivery.size or self.decoded_size

    @property
    def stages(self) -> tuple[StageName, ...]:
        """The stages that make every clip of this profile, in order."""
        return profile_stages(dict(self))

    def digest(self) -> str:
        """SHA-256 of the resolved settings; what no bit of a clip depends on does not count."""
        return settings_digest(self.model_dump(mode="json"))


def _short(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else shown(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= TITLED_CHARS else f"{text[: TITLED_CHARS - 3]}..."


def settings_digest(settings: Mapping[str, Any]) -> str:
    """The digest of a profile's resolved settings, as documents hold them, whatever version resolved them."""
    return hashlib.sha256(json.dumps(settings_content(settings), sort_keys=True).encode()).hexdigest()


def settings_content(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of a profile's resolved settings its digest covers: not what it is called and said to be, what counts as a
    defect, where clips are delivered and whether they may be stretched, nor marks as they are by default, which
    profiles of before there were any do not have.

    A tier counts as the schedule that it names, and nothing where that changes nothing.
    """
    content = {name: value for name, value in settings.items() if name not in _SAID_OF_IT}
    if isinstance(preview := content.get("preview"), Mapping):
        content["preview"] = evaluated_settings(preview)
    if isinstance(delivery := content.get("delivery"), Mapping):
        usual = {name: getattr(DeliverySpec(), name) for name in BESIDE_ENCODING}
        content["delivery"] = {
            name: value
            for name, value in delivery.items()
            if name not in (*PLACEMENT, CONSENT) and not (name in usual and value == usual[name])
        }
    return content


_SAID_OF_IT = ("name", "description", "experimental", "changed", "quality")


def evaluated_settings(preview: Mapping[str, Any]) -> dict[str, Any]:
    """A preview's settings as documents hold them, with the resolved schedule in place of all that names one.

    Settings that name no schedule which could be are left as they are: to refuse them is for who validates them.
    """
    plain = {name: value for name, value in preview.items() if name not in ("quality", "schedule", "tiers")}
    try:
        resolved = _stored_schedule(preview).resolved(preview["steps"])
    except _NO_SCHEDULE:
        return dict(preview)
    return plain if resolved is None else {**plain, "schedule": resolved.to_json()}


def tier_text(settings: Mapping[str, Any]) -> str | None:
    """Tier and share of the evaluations of a profile as documents hold it; None where they say too little.

    A schedule of the profile's own is of tier "schedule".
    """
    try:
        preview = settings["preview"]
        share = _stored_schedule(preview).share(preview["steps"])
        named = "schedule" if preview.get("schedule") else preview.get("quality", LOSSLESS)
    except _NO_SCHEDULE:
        return None
    return f"{named}, {share:.0%} of the evaluations"


_NO_SCHEDULE = (ConfigError, KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError)
"""What reading a schedule raises from settings that another version wrote, or that somebody spoilt."""


def _stored_schedule(preview: Mapping[str, Any]) -> Schedule:
    named = preview.get("tiers", {}).get(preview.get("quality"), {}).get(str(preview.get("steps")))
    return Schedule.from_json(preview.get("schedule") or named)
