"""What planning and housekeeping ask of a far store for each clip, and that they find what went wrong all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from minio.credentials import StaticProvider

from benchmarks.far.clips import clips_of, plan_of, put_batch
from benchmarks.far.server import BUCKET, FarS3
from magi2.artifacts.s3 import S3Store
from magi2.artifacts.store import artifact_prefix
from magi2.batches.plan import BatchPlan, save_plan
from magi2.batches.retention import RetentionPolicy, collect_garbage
from magi2.batches.told import told_to
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.rebuild import rebuild
from magi2.catalog.verify import verify
from magi2.catalog.whereabouts import rendered_in
from magi2.report.build import build_report
from magi2.types import Clip, StageName
from tests.recipes.recipe_books import make_book
from tests.render_helpers import small_profile

CLIPS = 100
BOOK = make_book(small_profile())


@dataclass
class Site:
    """A server with clips that were rendered, its store, and a catalog that knows them."""

    far: FarS3
    store: S3Store
    catalog: Catalog
    clips: list[Clip]

    def asked(self, work: Callable[[], object]) -> float:
        """Requests a clip that some work makes."""
        self.far.asked.clear()
        work()
        return sum(self.far.asked.values()) / len(self.clips)

    def plan(self, name: str, clips: list[Clip]) -> BatchPlan:
        plan = plan_of(
            self.store, BOOK, clips, name, told=lambda clips: told_to(self.store, rendered_in(self.catalog, clips))
        )
        save_plan(plan, self.store)
        return plan

    def file(self, stage: StageName, clip: Clip, ending: str) -> str:
        """The stored file of a clip that ends so."""
        chain = {StageName.ENHANCE: BOOK.enhance(clip), **BOOK.chain(clip, clip.prompt)}
        prefix = f"{artifact_prefix(stage, chain[stage].key)}/"
        names = [name for name in self.far.names(prefix) if name.endswith(ending)]
        return min(names, key=lambda name: name.endswith("manifest.json") and ending != "manifest.json")


def make_site(folder: Path, far: FarS3, count: int) -> Site:
    credentials = StaticProvider("a", "secret")
    store = S3Store(
        BUCKET, endpoint=far.endpoint, region="us-east-1", credentials=credentials, scratch=folder / "scratch"
    )
    clips = clips_of(BOOK, count)
    put_batch(store, far.put, BOOK, clips)
    return Site(far, store, open_catalog(f"sqlite:///{folder}/catalog.db"), clips)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with FarS3().running() as far:
        yield make_site(tmp_path_factory.mktemp("far"), far, CLIPS)


@pytest.fixture
def small_site(tmp_path: Path) -> Iterator[Site]:
    with FarS3().running() as far:
        site = make_site(tmp_path, far, 7)
        rebuild(site.store, site.catalog)
        yield site


def test_a_clip_costs_a_few_requests_in_every_work_over_a_store(site: Site) -> None:
    store, catalog = site.store, site.catalog
    later = datetime.now(UTC) + timedelta(days=30)
    plans: list[BatchPlan] = []
    asked = {
        "rebuild of a lost catalog": site.asked(lambda: rebuild(store, catalog)),
        "verify": site.asked(lambda: list(verify(store, catalog, digests=False))),
        "plan of finished clips": site.asked(lambda: plans.append(site.plan("again", site.clips))),
        "report of finished clips": site.asked(lambda: build_report(store, plans[0].batch_id)),
        "plan of new clips": site.asked(lambda: site.plan("new", clips_of(BOOK, CLIPS, first=CLIPS))),
        "retention": site.asked(lambda: collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later)),
    }
    most = {
        **{"rebuild of a lost catalog": 4, "verify": 3, "plan of finished clips": 2},
        **{"report of finished clips": 2, "plan of new clips": 3, "retention": 3},
    }
    assert {work: count for work, count in asked.items() if count > most[work]} == {}
    assert [len(plan.cached) for plan in plans] == [CLIPS]
    assert not any("/decode/" in name and name.endswith("manifest.json") for name in site.far.names("artifacts/"))


def deleted(far: FarS3, name: str) -> None:
    far.delete(name)


def truncated(far: FarS3, name: str) -> None:
    far.put(name, (far.get(name) or b"")[:-1])


def changed(far: FarS3, name: str) -> None:
    """Of the same size."""
    far.put(name, (far.get(name) or b"").replace(b"e", b"f"))


def test_artifacts_changed_behind_the_catalogs_back_are_found(small_site: Site) -> None:
    site, hurts = small_site, [deleted, truncated, changed]
    files = [*((hurt, "manifest.json") for hurt in hurts), (deleted, ".mp4"), (truncated, ".mp4")]
    for clip, (hurt, ending) in zip(site.clips, files, strict=False):
        hurt(site.far, site.file(StageName.MUX, clip, ending))
    keys = [BOOK.chain(clip, clip.prompt)[StageName.MUX].key for clip in site.clips]
    problems = list(verify(site.store, site.catalog, digests=False))
    found = {problem.place: problem.kind.value for problem in problems}
    assert found == {f"mux/{keys[0]}": "unproven"} | {f"mux/{key}": "damaged" for key in keys[1:5]}
    again = site.plan("again", site.clips)
    assert again.cached == tuple(site.clips[5:])
    assert [shard.clips for shard in again.shards] == [tuple(site.clips[:5])] and again.missing == {"mux": 5}
    report = rebuild(site.store, site.catalog, force=True)  # of so few one is more than a tenth
    assert (report.artifacts_forgotten, len(report.problems)) == (5, 4)


def test_clips_without_their_captions_are_rendered_again(small_site: Site) -> None:
    site, hurts = small_site, [deleted, truncated, changed]
    for clip, hurt in zip(site.clips, hurts, strict=False):
        hurt(site.far, site.file(StageName.ENHANCE, clip, "manifest.json"))
    for clip, hurt in zip(site.clips[3:], hurts, strict=False):
        hurt(site.far, site.file(StageName.ENHANCE, clip, ".json"))
    again = site.plan("again", site.clips)
    assert again.cached == tuple(site.clips[6:])
    assert again.missing == dict.fromkeys(BOOK.profile.stages, 6)


def test_a_removed_or_damaged_intermediate_is_no_reason_to_keep_the_others(small_site: Site) -> None:
    site = small_site
    deleted(site.far, site.file(StageName.DECODE, site.clips[0], "manifest.json"))
    truncated(site.far, site.file(StageName.DECODE, site.clips[1], "manifest.json"))
    later = datetime.now(UTC) + timedelta(days=30)
    report = collect_garbage(site.store, policy=RetentionPolicy(), dry_run=False, now=later)
    whole = {BOOK.chain(clip, clip.prompt)[StageName.DECODE].key for clip in site.clips[2:]}
    assert {key for _, key in report.removed} == whole


def test_a_file_of_a_dead_attempt_beside_a_whole_artifact_is_found(small_site: Site) -> None:
    site = small_site
    stray = f"{site.file(StageName.MUX, site.clips[0], 'manifest.json').rpartition('/')[0]}/clip.a0123456789abcdef.mp4"
    site.far.put(stray, b"of an attempt that lost")
    problems = list(verify(site.store, site.catalog, digests=False, orphan_age_hours=0))
    assert [(problem.kind.value, problem.place) for problem in problems] == [("orphan", stray)]
