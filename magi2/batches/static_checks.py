"""Faults that are certain before anything is rendered: the plan finds them, and no stage starts for them.

A fault of a profile, of its weights or of the deployment is everybody's and ends the plan; one of a clip is its row's.
Each is a function of a list below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from magi2.batches.size_checks import require_encodable, require_one_aspect, require_room, require_stretch_is_wanted
from magi2.checkpoints.fit import require_fit
from magi2.checkpoints.layout import CheckpointFolder
from magi2.checkpoints.whole import require_whole
from magi2.config.load import load_negative_prompt
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError, Magi2Error, PromptTooLongError
from magi2.models.text_encoder.tokenizer import load_prompt_tokenizer, require_at_most
from magi2.parallel.layout import ParallelLayout
from magi2.prompts.compact import compact_prompt
from magi2.prompts.enhance import foreseen, resolve_mode
from magi2.recipes.book import encoder_text, prompt_figures
from magi2.recipes.load import endpoint_settings
from magi2.stages.layouts import check_layout
from magi2.types import Clip


@dataclass(frozen=True)
class Site:
    """What a deployment renders with."""

    settings: Settings
    weights: CheckpointFolder

    def tokens(self) -> Callable[[str], int]:
        """How many tokens a text has. Raises: CheckpointError when the tokenizer's files are missing or unreadable."""
        tokenizer = load_prompt_tokenizer(self.weights.folder("text_encoder"))
        return lambda text: len(tokenizer.tokenize(text))


def check_profiles(profiles: Iterable[Profile], clips: Sequence[Clip], site: Site) -> None:
    """Raises what the first fault of `PROFILE_CHECKS` is. `clips` are those of all the profiles."""
    by_digest: dict[str, list[Clip]] = {}
    for clip in clips:
        by_digest.setdefault(clip.profile_digest, []).append(clip)
    for profile in profiles:
        for check in PROFILE_CHECKS:
            check(profile, by_digest.get(profile.digest(), ()), site)


def _weights_are_whole(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    require_whole(profile, clips, site.weights)


def _weights_are_its_own(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    require_fit(profile, site.weights, site.settings.configs)


def _layout_fits(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    if site.settings.layout:  # the one of the host that renders is not known here
        check_layout(ParallelLayout.parse(site.settings.layout), profile)


def _negative_prompt_is_read_whole(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    negative = load_negative_prompt(profile, site.settings.configs)
    if negative is None or profile.text.on_overflow == "truncate":
        return
    try:
        require_at_most(site.tokens()(compact_prompt(negative)), profile.text.max_tokens)
    except PromptTooLongError as error:
        raise ConfigError(f"profile {profile.title}: its negative {error}") from None


def _endpoint_is_set(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    resolve_mode(profile.enhancement.mode, endpoint_settings(site.settings))


def _sizes_go_together(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    require_one_aspect(profile)
    require_stretch_is_wanted(profile)
    require_encodable(profile)


def _cards_have_room(profile: Profile, clips: Sequence[Clip], site: Site) -> None:
    require_room(profile, site.settings)


PROFILE_CHECKS: tuple[Callable[[Profile, Sequence[Clip], Site], None], ...] = (
    _weights_are_its_own,
    _weights_are_whole,
    _sizes_go_together,
    _layout_fits,
    _cards_have_room,
    _endpoint_is_set,
    _negative_prompt_is_read_whole,
)
ROW_CHECKS = (_sizes_go_together, _negative_prompt_is_read_whole)
"""Those of them that a row's own settings may fail, which then is its fault alone."""


class ClipCheck:
    """Raises what is wrong with a clip, each of `CLIP_CHECKS` in turn. `profile_of` gives a profile by its digest.

    Raises: CheckpointError when made, if files of the text encoder are missing or its tokenizer's are unreadable.
    """

    def __init__(self, site: Site, profile_of: Callable[[str], Profile]) -> None:
        self._site = site
        self._profile_of = lru_cache(profile_of)
        site.weights.require(["text_encoder"])
        self._tokens = lru_cache(maxsize=1024)(site.tokens())
        self._faults: dict[str, Magi2Error | None] = {}

    def __call__(self, clip: Clip) -> None:
        for check in CLIP_CHECKS:
            check(self, clip, self._profile_of(clip.profile_digest))

    def is_read_whole(self, clip: Clip, profile: Profile) -> None:
        """Raises PromptTooLongError; InputError for what no caption can be made of.

        What a language model will write is not known: the stage that asks it counts.
        """
        caption = clip.caption or self._foreseen(clip, profile)
        if caption is not None and profile.text.on_overflow == "refuse":
            require_at_most(self._tokens(encoder_text(clip, caption)), profile.text.max_tokens)

    def settings_go_together(self, clip: Clip, profile: Profile) -> None:
        """Raises what `ROW_CHECKS` find in a profile that its row changed, looked at once."""
        if profile.changed and clip.profile_digest not in self._faults:
            self._faults[clip.profile_digest] = self._fault_of(profile)
        if fault := self._faults.get(clip.profile_digest):
            raise fault

    def _fault_of(self, profile: Profile) -> Magi2Error | None:
        try:
            for check in ROW_CHECKS:
                check(profile, (), self._site)
        except Magi2Error as error:
            return error
        return None

    def _foreseen(self, clip: Clip, profile: Profile) -> str | None:
        caption = foreseen(
            clip.prompt,
            images=prompt_figures(clip),
            mode=resolve_mode(profile.enhancement.mode, endpoint_settings(self._site.settings)),
            aspect_ratio=f"{profile.preview.width}:{profile.preview.height}",
            compact_format=profile.enhancement.compact_format,
        )
        return None if caption is None else caption.text


CLIP_CHECKS: tuple[Callable[[ClipCheck, Clip, Profile], None], ...] = (
    ClipCheck.is_read_whole,
    ClipCheck.settings_go_together,
)
