"""A catalog and a store with one batch of everything, and the app on them with a person of each role."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Request
from fastapi.testclient import TestClient

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest, ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.catalog import BatchState, Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.captions import CAPTION
from magi2.types import Clip, FigureImage, StageName
from magi2_airflow.renders.airflow_api import airflow_app
from magi2_airflow.renders.airflow_check import AirflowCheck
from magi2_airflow.renders.app import app
from magi2_airflow.renders.deployment import PageDeployment, deployment

BATCH, OTHER = "0123456789abcdef", "fedcba9876543210"
RUN = "manual__2031-02-03T04:05:06+00:00"
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>\u202egnp.exe\u202c </title>'
LONG = "lang " * 2000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
CREATED = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
NO_ROLE = "stranger"
JPEG = b"\xff\xd8\xff"


@dataclass
class Site:
    """The deployment, its clips by name, and the manifests of those that are delivered."""

    deployment: PageDeployment
    clips: dict[str, Clip]
    delivered: dict[str, Manifest]

    @property
    def lacks(self) -> list[str]:
        """What is missing of Airflow."""
        assert isinstance(self.deployment.airflow_check, FoundAirflow)
        return self.deployment.airflow_check.lacks

    @property
    def catalog(self) -> Catalog:
        return self.deployment.catalog

    def id(self, name: str) -> str:
        return self.clips[name].clip_id

    def key(self, name: str) -> str:
        return self.delivered[name].key

    def path(self, name: str) -> str:
        return f"/api/batches/{BATCH}/clips/{self.id(name)}"


class FoundAirflow(AirflowCheck):
    """An Airflow that lacks what a test says, by default nothing; the real one has no database here."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.lacks: list[str] = []

    def _sentences(self) -> Iterator[str]:
        yield from self.lacks


def deployment_on(settings: Settings, catalog: Catalog, store: LocalStore) -> PageDeployment:
    """A deployment with an open catalog and store."""
    made = PageDeployment(settings)
    made.catalog, made.store, made.airflow_check = catalog, store, FoundAirflow(catalog)
    return made


def make_site(folder: Path) -> Site:
    """Two batches: one with a clip in every state, one rendered by hand that shares a prompt with it."""
    settings = replace(Settings(), price_per_accelerator_hour=36.0, currency="EUR")
    store, catalog = LocalStore(folder / "store"), open_catalog(f"sqlite:///{folder}/catalog.sqlite")
    refined = load_profile("1080p", settings.configs)
    plain = load_profile("540p", settings.configs, ["experimental=true"])
    profiles = {profile.digest(): profile.model_dump(mode="json") for profile in (refined, plain)}
    figure = FigureImage(1, folder / "cat.png", "c" * 64)
    store.put_document(f"images/{figure.sha256}", PNG)

    def clip(name: str, profile: Any = refined, **values: Any) -> Clip:
        given = {"prompt": f"prompt of {name}", "seed": 7, "names": (name,), "tags": ("night",), **values}
        return Clip(profile_name=profile.name, profile_digest=profile.digest(), **given)

    clips = {
        "fox": clip("fox", prompt="a red fox in snow", tags=("night", HOSTILE)),
        "fox again": clip("fox again", plain, prompt="a red fox in snow", tags=()),
        "cat": clip("cat", prompt="a cat <Figure 1>", figures=(figure,), seed=8),
        "lost": clip("lost", seed=9),
        "nan": clip("nan", plain, seed=10),
        "hostile": clip("hostile", prompt=HOSTILE, names=(HOSTILE,)),
        "long": clip("long", prompt=LONG),
        "found": clip("found", prompt="finished before"),
    }
    enter(catalog, BATCH, clips.values(), profiles, store, found="found", dag_id="magi2_render_batch", run_id=RUN)
    again = clip("fox by hand", prompt="a red fox in snow", seed=99)
    enter(catalog, OTHER, [again], profiles, store)
    site = Site(deployment_on(settings, catalog, store), {**clips, "fox by hand": again}, {})
    _render(site, store)
    return site


def copy_site(made: Site, folder: Path) -> Site:
    """The same site in another folder."""
    made.catalog.close()
    root = Path(made.catalog.database.place).parent
    shutil.copytree(root, folder, dirs_exist_ok=True)
    catalog, store = open_catalog(f"sqlite:///{folder}/catalog.sqlite"), LocalStore(folder / "store")
    return replace(made, deployment=deployment_on(made.deployment.settings, catalog, store))


def enter(
    catalog: Catalog, batch_id: str, clips: Any, profiles: Any, store: LocalStore, found: str = "", **values: Any
) -> None:
    planned = []
    for clip in clips:
        key = None
        if clip.names == (found,):
            manifest = publish(store, "mux", {"clip.mp4": b"found"}, seed=clip.seed, label=found)
            catalog.artifacts.index([manifest])
            key = manifest.key
        planned.append(PlannedClip(clip, None if key else 0, key))
    batch = NewBatch(
        batch_id=batch_id,
        name=f"{HOSTILE} {batch_id}",
        source="night.jsonl",
        clips_total=len(planned),
        **values,
        created_at=CREATED + timedelta(hours=batch_id == BATCH),
        requested_by="ann",
        failure_limit=2,
    )
    catalog.batches.create(batch, profiles)
    catalog.clips.add(batch_id, planned)


def publish(store: LocalStore, stage: str, files: dict[str, bytes], *, seed: int, label: str) -> Manifest:
    recipe = Recipe(stage, 1, config={"label": label}, seed=seed)
    with store.stage_folder(stage, recipe.key) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return store.publish(ManifestDraft(recipe), {name: folder / name for name in files})


def _render(site: Site, store: LocalStore) -> None:
    catalog = site.catalog
    for name in ("fox", "fox again", "cat"):
        clip = site.clips[name]
        caption = Caption(f"a caption of {name} {HOSTILE}").to_json()
        enhanced = publish(store, "enhance", {CAPTION: caption}, seed=clip.seed, label=name)
        files = {
            "clip.mp4": bytes(range(256)),
            "poster.jpg": JPEG,
            "contact_sheet.jpg": JPEG,
            **({} if name == "fox again" else {"thumbnail.webp": b"RIFF\0\0\0\0WEBP"}),
        }
        muxed = publish(store, "mux", files, seed=clip.seed, label=name)
        site.delivered[name] = muxed
        catalog.artifacts.index([enhanced, muxed])
        flags = ("enhancement_fallback",) if name == "cat" else ()
        finish(catalog, site.id(name), StageName.ENHANCE, RunState.MADE, 1.0, artifact_key=enhanced.key, flags=flags)
        finish(catalog, site.id(name), StageName.PREVIEW, RunState.MADE, 60.0)
        state = RunState.REUSED if name == "fox again" else RunState.MADE
        finish(catalog, site.id(name), StageName.MUX, state, 2.0, artifact_key=muxed.key)
    for name, error in (("lost", "a rank was lost"), ("nan", HOSTILE)):
        finish(catalog, site.id(name), StageName.PREVIEW, RunState.FAILED, 5.0, error=error, error_code="contract")
    finish(catalog, site.id("lost"), StageName.PREVIEW, RunState.FAILED, 7.0, attempt=2, error="a rank was lost")
    catalog.runs.start(BATCH, StageName.ENCODE, [site.id("long")], attempt=1, shard=0, host="node1")


def finish(catalog: Catalog, clip_id: str, stage: StageName, state: RunState, seconds: float, **values: Any) -> None:
    run = Run(
        clip_id=clip_id,
        stage=stage,
        state=state,
        shard=0,
        host="node1",
        seconds=seconds,
        accelerator_seconds=seconds * 8,
        peak_memory_bytes=1 << 30,
        started_at=CREATED,
        finished_at=CREATED + timedelta(seconds=seconds),
        **values,
    )
    catalog.runs.finish(BATCH, [run])


@contextmanager
def served(site: Site) -> Iterator[None]:
    """The app on this site; who asks is named by the header `X-Role`, without it the login is Airflow's own."""
    create_auth_manager()

    async def person(request: Request) -> SimpleAuthManagerUser:
        role = request.headers.get("x-role")
        if role is None:
            return await get_user(request, None, None)  # type: ignore[return-value]
        return SimpleAuthManagerUser(username=f"the {role}", role=None if role == NO_ROLE else role)

    nowhere: dict[Any, Any] = {airflow_app: lambda: None}  # importing Airflow's own app takes seconds
    app.dependency_overrides |= {get_user: person, deployment: lambda: site.deployment, **nowhere}
    try:
        yield
    finally:
        app.dependency_overrides.clear()


def client(role: str | None = "viewer") -> TestClient:
    """A browser of somebody with this role, or of somebody who is not logged in."""
    headers = {"X-Role": role} if role else {}
    return TestClient(app, headers=headers, raise_server_exceptions=False, follow_redirects=False)


def end(site: Site, state: BatchState = BatchState.FAILED) -> None:
    """The batch comes to its end."""
    site.catalog.batches.mark(BATCH, state)
