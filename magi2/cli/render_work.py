"""Rendering what a command asked for: in this process when one rank does it, else in a group for each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from magi2.cli.console import TerminalProgress
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.types import Clip, StageName

if TYPE_CHECKING:
    from magi2.artifacts.store import ArtifactStore
    from magi2.parallel.layout import ParallelLayout
    from magi2.recipes.result import StageResult
    from magi2.stages.context import StageContext
    from magi2.stages.render import Outcome


@dataclass
class RenderWork:
    """Clips with their profiles by digest, and the layout that was asked for, if one was."""

    clips: Sequence[Clip]
    profiles: dict[str, Profile]
    settings: Settings
    layout: str | None
    progress: TerminalProgress

    @cached_property
    def store(self) -> ArtifactStore:
        """Where everything lies. Raises: IdentityError when it is not the catalog's store."""
        from magi2.deployment import open_store_to_render

        return open_store_to_render(self.settings)

    def render(self) -> Iterable[Outcome]:
        """Every stage of every clip.

        Raises before anything starts: ConfigError for a layout that cannot be, what `store` does.
        """
        return self._render_in_groups() if self._is_spread(StageName) else self._render_here()

    def run_stage(self, name: StageName) -> list[StageResult]:
        """One stage of every clip. Raises as `render` does."""
        if self._is_spread([name]):
            found = self._run_in_groups(self.clips, lambda profile: (name,))
            return [result for results in found.values() for result in results]
        from magi2.stages.render import run_stage

        return [result for group, context in self._contexts() for result in run_stage(context, name, group)]

    def _is_spread(self, stages: Iterable[StageName]) -> bool:
        from magi2.stages.layouts import check_layout

        layouts = {self._stage_layout(stage) for stage in stages}
        for profile in self.profiles.values():
            for layout in layouts:
                check_layout(layout, profile)
        return any(layout.num_ranks > 1 for layout in layouts)

    def _stage_layout(self, stage: StageName) -> ParallelLayout:
        from magi2.stages.layouts import stage_layout

        return stage_layout(stage, self.layout, self.settings)

    def _render_here(self) -> Iterator[Outcome]:
        from magi2.stages.render import render

        for group, context in list(self._contexts()):  # all profiles are tried before the first clip
            yield from render(context, group)

    def _render_in_groups(self) -> Iterable[Outcome]:
        """A clip whose file is in the store needs no group, whatever retention has taken of what led to it."""
        from magi2.checkpoints.layout import CheckpointFolder
        from magi2.recipes.book import stage_names
        from magi2.recipes.load import recipe_book
        from magi2.recipes.lookup import stored_results
        from magi2.stages.render import Outcome

        weights = CheckpointFolder(self.settings.checkpoint_root())
        outcomes = {clip.clip_id: Outcome(clip) for clip in self.clips}
        for profile, group in self._groups():
            book = recipe_book(profile, self.settings, weights)
            for clip in group:
                outcomes[clip.clip_id].results += stored_results(self.store, book, StageName.MUX, [clip]) or []
        waiting = [outcome.clip for outcome in outcomes.values() if not outcome.results]
        for clip_id, found in self._run_in_groups(waiting, stage_names).items():
            outcomes[clip_id].results += found
        return outcomes.values()

    def _run_in_groups(
        self, clips: Sequence[Clip], stages_of: Callable[[Profile], Sequence[StageName]]
    ) -> dict[str, list[StageResult]]:
        from magi2.jobs.groups import run_in_groups

        return run_in_groups(
            clips,
            self.profiles,
            stages_of,
            self._stage_layout,
            store=self.store,
            settings=self.settings,
            progress=self.progress,
        )

    def _contexts(self) -> Iterator[tuple[list[Clip], StageContext]]:
        from magi2.runtime.lock import artifact_locks
        from magi2.stages.prepare import prepare

        for profile, group in self._groups():
            context = prepare(profile, self.settings, group, progress=self.progress, store_opener=lambda: self.store)
            if context.device.type == "cpu":
                context.artifact_lock = artifact_locks(self.settings.store, self.progress.waiting)
            yield group, context

    def _groups(self) -> Iterator[tuple[Profile, list[Clip]]]:
        """The clips of each profile."""
        for digest, profile in self.profiles.items():
            if group := [clip for clip in self.clips if clip.profile_digest == digest]:
                yield profile, group
