"""Rendering in tests: settings, contexts and clips for tiny checkpoints, and what a store holds afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from magi2.artifacts.local import LocalStore
from magi2.artifacts.recipe import sha256_file
from magi2.artifacts.store import ArtifactStore
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.jobs.render import ClipRender
from magi2.recipes.book import RecipeBook
from magi2.stages.context import StageContext
from magi2.stages.prepare import prepare
from magi2.stages.render import Outcome
from magi2.types import Clip, FigureImage

CONFIGS = Settings().configs
SMALL = ("preview.steps=1", "preview.width=64", "preview.height=32")
"""A second a clip without the refiner, three with it; enough pixels for every code path."""
SMALL_REFINED = (*SMALL, "refiner.steps=1", "refiner.width=80", "refiner.height=32")

Digests = dict[str, dict[str, str]]


def small_profile(*overrides: str, refined: bool = False) -> Profile:
    """The tiny profile at the size of a stamp, with or without its refiner."""
    name, small = ("tiny", SMALL_REFINED) if refined else ("tiny-preview", SMALL)
    return load_profile(name, CONFIGS, (*small, *overrides))


def make_clip(profile: Profile, prompt: str = "a heron takes off", seed: int = 7, image: Path | None = None) -> Clip:
    """A clip of `profile`; an image is its first frame."""
    figures = () if image is None else (FigureImage(1, image, sha256_file(image)),)
    return Clip(prompt, seed, profile.name, profile.digest(), figures)


def make_context(checkpoint: Path, store: Path, profile: Profile, clips: Sequence[Clip] = ()) -> StageContext:
    """A fresh context, as a new process would have it."""
    return prepare(profile, Settings(ckpt_root=checkpoint, store=str(store)), clips)


class ContextDeployment(Deployment):
    """A deployment that consists of a test's context, without a catalog."""

    def __init__(self, context: StageContext) -> None:
        super().__init__(Settings(store=context.store.url, catalog="sqlite://"))  # which needs a file
        self.context = context
        self.store = context.store
        self.weights = context.weights

    def store_to_render(self, *, dry_run: bool = False) -> ArtifactStore:
        return self.store

    def recipe_book(self, profile: Profile) -> RecipeBook:
        return self.context.book


class ContextRender(ClipRender):
    """Clips rendered in a test's context, as a command renders them in its own."""

    def __init__(self, context: StageContext, clips: Sequence[Clip]) -> None:
        profile = context.book.profile
        deployment = ContextDeployment(context)
        super().__init__(clips, {profile.digest(): profile}, deployment, progress=context.progress)
        self.context = context

    def contexts(self) -> dict[str, StageContext]:
        return {self.context.book.profile.digest(): self.context}


def render(context: StageContext, clips: Sequence[Clip]) -> list[Outcome]:
    """Every stage of every clip."""
    return list(ContextRender(context, clips).render())


def digests(store: Path, outcome: Outcome) -> Digests:
    """SHA-256 of every payload by stage, of a clip that has passed all of them."""
    assert outcome.failure is None, outcome.failure and outcome.failure.error
    found: Digests = {}
    for result in outcome.results:
        assert result.key is not None
        manifest = LocalStore(store).find(result.stage, result.key)
        assert manifest is not None
        found[result.stage.value] = {name: payload.sha256 for name, payload in manifest.payloads.items()}
    return found


def states(outcome: Outcome) -> dict[str, str]:
    """Stage to `made`, `reused` or `failed`."""
    return {result.stage.value: result.state for result in outcome.results}


def artifact_folder(store: Path, stage: str, key: str | None) -> Path:
    """Where a store on disk keeps an artifact."""
    assert key is not None
    return store / "artifacts" / stage / key[:2] / key


def payload_file(store: Path, stage: str, key: str | None, name: str) -> Path:
    """The stored file of a payload."""
    stem, _, suffix = name.partition(".")
    (found,) = artifact_folder(store, stage, key).glob(f"{stem}.*.{suffix}")
    return found


def flip_byte(path: Path) -> None:
    """Change one byte in the middle of a file; its size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut a file to half its size."""
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove_stages(store: Path, outcome: Outcome, *stages: str) -> None:
    """Remove a clip's artifacts of some stages."""
    for result in outcome.results:
        if result.stage.value in stages:
            assert LocalStore(store).remove(result.stage, result.key or "")


def stored_files(store: Path) -> dict[str, str]:
    """Every file below `store` with its digest, but for batches' documents and leases, which tell when and by whom."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file())
    names = {path.relative_to(store).as_posix(): path for path in files}
    of_batches = ("documents/batches/", "documents/leases/")
    return {name: sha256_file(path) for name, path in names.items() if not name.startswith(of_batches)}


def renamed(clip: Clip, *names: str) -> Clip:
    """The clip under other names."""
    return replace(clip, names=names)
