"""Whatever differs between manifests, files and rows is found, from either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from magi2.artifacts import LocalStore, Manifest
from magi2.batches.documents import failure_name
from magi2.batches.failures import save_failure
from magi2.catalog import Catalog, PlannedClip
from magi2.catalog.compare import ProblemKind
from magi2.catalog.rebuild import rebuild
from magi2.catalog.verify import verify
from magi2.errors import InfrastructureError
from magi2.types import ARTIFACT_FOLDERS, FigureImage, StageName
from tests.catalog.catalog_samples import PROFILES, StoredPlan, done, enter, make_batch, make_clip, publish, result

SHARED_STAGES = ("enhance", "preview", "mux")


def found(store: LocalStore, catalog: Catalog, *, digests: bool = True) -> list[tuple[ProblemKind, str]]:
    problems = verify(store, catalog, digests=digests, orphan_age_hours=0)
    return [(problem.kind, problem.place) for problem in problems]


def files(store: LocalStore, manifest: Manifest, pattern: str = "clip.*") -> Path:
    return next(store.root.glob(f"artifacts/{manifest.stage}/*/{manifest.key}/{pattern}"))


@pytest.fixture
def manifests(catalog: Catalog, store: LocalStore) -> list[Manifest]:
    """A store and a catalog that agree."""
    published = [publish(store, stage, seed) for stage in SHARED_STAGES for seed in range(3)]
    clip, cached = make_clip(1), make_clip(2)
    plan = StoredPlan(store)
    plan.save([[clip]], [(cached, published[-1].key)])
    catalog.artifacts.index(published)
    catalog.batches.create(make_batch(clips_total=2), PROFILES)
    catalog.clips.add("night", [PlannedClip(clip, 0), PlannedClip(cached, None, published[-1].key)])
    catalog.runs.finish("night", [done(clip.clip_id, published[-2])])
    return published


@pytest.mark.usefixtures("manifests")
def test_sound_store_and_catalog_have_no_problem(catalog: Catalog, store: LocalStore) -> None:
    assert found(store, catalog) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.with_name("manifest.json").write_bytes(b"{}"),
    ],
)
def test_missing_short_and_unreadable_files_are_found(
    catalog: Catalog, store: LocalStore, manifests: list[Manifest], damage: Callable[[Path], object]
) -> None:
    damage(files(store, manifests[4]))
    assert found(store, catalog, digests=False) == [(ProblemKind.DAMAGED, f"preview/{manifests[4].key}")]


def test_flipped_byte_is_found_when_digests_are_asked_for(
    catalog: Catalog, store: LocalStore, manifests: list[Manifest]
) -> None:
    path = files(store, manifests[0])
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert found(store, catalog, digests=False) == []
    problems = list(verify(store, catalog, digests=True))
    assert [(problem.kind, problem.place) for problem in problems] == [
        (ProblemKind.DAMAGED, f"enhance/{manifests[0].key}")
    ]
    assert "SHA-256" in problems[0].message
    assert str(path) in problems[0].message


IMAGE = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of b"abc"


@pytest.mark.parametrize(
    ("content", "digests", "said"),
    [
        (b"abc", True, None),
        (b"abd", True, "image ba7816bf8f01 is damaged in the store"),
        (b"abd", False, None),
        (None, False, "a reference image of batches/night is not in the store"),
    ],
)
def test_reference_images_are_checked(
    catalog: Catalog, store: LocalStore, content: bytes | None, digests: bool, said: str | None
) -> None:
    clip = replace(make_clip(1), figures=(FigureImage(1, Path("boat.png"), IMAGE),))
    StoredPlan(store).save([[clip]])
    enter(catalog, [clip])
    if content is not None:
        store.put_document(f"images/{IMAGE}", content)
    problems = [(problem.kind, problem.place, problem.message) for problem in verify(store, catalog, digests=digests)]
    assert problems == ([] if said is None else [(ProblemKind.DAMAGED, f"images/{IMAGE}", said)])


def test_artifact_without_row_is_found(catalog: Catalog, store: LocalStore, manifests: list[Manifest]) -> None:
    extra = [publish(store, folder, seed=9) for folder in ARTIFACT_FOLDERS]
    assert found(store, catalog) == [(ProblemKind.NOT_INDEXED, f"{one.stage}/{one.key}") for one in extra]
    rebuild(store, catalog)
    assert found(store, catalog) == []


def test_row_without_manifest_is_found(catalog: Catalog, store: LocalStore, manifests: list[Manifest]) -> None:
    store.remove("mux", manifests[-1].key)
    catalog.database.write(
        lambda connection: connection.execute(
            text("UPDATE artifacts SET stage = 'retired' WHERE key = :key"), {"key": manifests[0].key}
        )
    )
    assert sorted(found(store, catalog)) == sorted(
        [
            (ProblemKind.UNPROVEN, f"mux/{manifests[-1].key}"),
            (ProblemKind.UNPROVEN, f"retired/{manifests[0].key}"),
            (ProblemKind.STALE, f"enhance/{manifests[0].key}"),
        ]
    )
    rebuild(store, catalog, force=True)
    assert found(store, catalog) == []


def test_row_of_an_earlier_making_is_found(catalog: Catalog, store: LocalStore, manifests: list[Manifest]) -> None:
    store.remove("preview", manifests[3].key)
    publish(store, "preview", seed=0, host="elsewhere")
    assert found(store, catalog) == [(ProblemKind.STALE, f"preview/{manifests[3].key}")]


def test_orphaned_files_are_found_once_they_are_old(
    catalog: Catalog, store: LocalStore, manifests: list[Manifest]
) -> None:
    path = files(store, manifests[0]).with_name("clip.a0123456789abcdef.mp4")
    path.write_bytes(b"half")
    assert found(store, catalog) == [(ProblemKind.ORPHAN, path.relative_to(store.root).as_posix())]
    assert list(verify(store, catalog, digests=False)) == []
    assert path.exists()


@pytest.mark.usefixtures("manifests")
def test_batches_and_clips_of_one_side_only_are_found(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog, [make_clip(5)], "ghost")
    catalog.clips.add("night", [PlannedClip(make_clip(6), 0)])
    StoredPlan(store, "unknown").save([[make_clip(7)]])
    StoredPlan(store, "partial").save([[make_clip(8)]])
    catalog.batches.create(make_batch("partial", clips_total=1), PROFILES)
    StoredPlan(store, "broken").save([[make_clip(8)]])
    StoredPlan(store, "broken").put("cached.json", 3)
    assert found(store, catalog) == [
        (ProblemKind.DAMAGED, "batches/broken"),
        (ProblemKind.UNPROVEN, "batches/night"),
        (ProblemKind.NOT_INDEXED, "batches/partial"),
        (ProblemKind.NOT_INDEXED, "batches/unknown"),
        (ProblemKind.UNPROVEN, "batches/ghost"),
    ]


@pytest.mark.usefixtures("manifests")
def test_problems_come_one_by_one(catalog: Catalog, store: LocalStore) -> None:
    publish(store, "decode", seed=1)
    problems = verify(store, catalog, digests=False)
    assert next(problems).kind is ProblemKind.NOT_INDEXED
    assert next(problems, None) is None


def test_rebuilt_catalog_has_no_problem(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    StoredPlan(store).save([[make_clip(1)]], [(make_clip(2), manifest.key)])
    assert len(found(store, catalog)) == 2
    rebuild(store, catalog)
    assert found(store, catalog) == []


def test_every_changed_document_of_a_batch_is_found(catalog: Catalog, store: LocalStore) -> None:
    for stage in (StageName.ENCODE, StageName.PREVIEW):
        save_failure(store, "night", 0, stage, InfrastructureError("the disk is full"))
    StoredPlan(store).save([[make_clip(1)]])
    rebuild(store, catalog)
    assert found(store, catalog) == []
    for stage in (StageName.ENCODE, StageName.PREVIEW):
        name = failure_name("night", 0, stage)
        store.put_document(name, (store.get_document(name) or b"").replace(b"disk", b"desk"))
    problems = list(verify(store, catalog, digests=False))
    assert {(problem.kind, problem.place) for problem in problems} == {(ProblemKind.DAMAGED, "batches/night")}
    assert [name in problem.message for name, problem in zip(("encode", "preview"), problems, strict=True)] == [
        True
    ] * 2


class BadSectors(LocalStore):
    """A store on a disk that does not read one document or one manifest."""

    bad = ""

    def _read(self, name: str) -> bytes | None:
        if self.bad and self.bad in name:
            raise InfrastructureError(f"{name}: Input/output error")
        return super()._read(name)


@pytest.mark.parametrize("part", ["batch.json", "shards/0.json", "cached.json", "results/0.encode.json"])
def test_a_document_that_the_disk_does_not_read_is_named_and_others_are_seen(
    catalog: Catalog, tmp_path: Path, part: str
) -> None:
    store = BadSectors(tmp_path / "bad")
    for batch_id in ("night", "other"):
        StoredPlan(store, batch_id).save([[make_clip()]])
        StoredPlan(store, batch_id).save_results(0, "encode", [result(make_clip())])
    store.bad = f"batches/night/{part}"
    report = rebuild(store, catalog)
    assert [(problem.place, part in problem.message) for problem in report.problems] == [("batches/night", True)]
    assert [batch.batch_id for batch in catalog.batches.search().rows] == ["other"]
    assert found(store, catalog) == [(ProblemKind.DAMAGED, "batches/night")]


@pytest.mark.usefixtures("manifests")
def test_a_manifest_that_the_disk_does_not_read_is_named_and_stays_in_the_catalog(
    catalog: Catalog, store: LocalStore, manifests: list[Manifest]
) -> None:
    bad = BadSectors(store.root)
    bad.bad = f"{manifests[4].key}/manifest.json"
    assert found(bad, catalog) == [(ProblemKind.DAMAGED, f"preview/{manifests[4].key}")]
    assert rebuild(bad, catalog).artifacts_forgotten == 0
    assert catalog.artifacts.get(manifests[4].key) is not None


@pytest.mark.usefixtures("manifests")
def test_a_store_that_reads_nothing_is_no_damage(catalog: Catalog, store: LocalStore) -> None:
    bad = BadSectors(store.root)
    bad.bad = "/"
    with pytest.raises(InfrastructureError):
        list(verify(bad, catalog, digests=False))


def test_a_manifest_of_format_1_that_lacks_a_file_of_its_stage_is_found(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store, "mux")
    path = files(store, manifest, "manifest.json")
    content = json.loads(path.read_bytes())
    del content["sha256"]
    path.chmod(0o644)
    path.write_text(json.dumps({**content, "format": 1}))
    (problem,) = verify(store, catalog, digests=False)
    assert (problem.kind, problem.place) == (ProblemKind.DAMAGED, f"mux/{manifest.key}")
    assert "has no contact_sheet.jpg, its manifest names ['clip.mp4']" in problem.message
