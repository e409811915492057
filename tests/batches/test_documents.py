"""The documents of a batch: read back as written, readable from before they had a version, named when damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.documents import (
    VERSION,
    all_results,
    batch_folder,
    batch_ids,
    batch_name,
    failure_name,
    find_document,
    find_faults,
    finished_name,
    load_batch,
    load_finished,
    load_report,
    load_shard_document,
    read_document,
    remove_batch,
    report_name,
    results_name,
    shard_name,
    write_document,
)
from magi2.batches.failures import load_failure, save_failure
from magi2.batches.plan import load_shard
from magi2.batches.rerun import batch_clips, select_clips
from magi2.batches.results import failed_clips, read_results
from magi2.batches.schema import (
    SEALED_SINCE,
    BatchDocument,
    ClipDocument,
    ClipResult,
    Document,
    FailureDocument,
    FinishedClip,
    FinishedDocument,
    OptionsDocument,
    RefusedRow,
    ReportDocument,
    ReportedClip,
    ResultsDocument,
    ShardDocument,
    StageCount,
    StageOutcome,
)
from magi2.catalog.documents import read_batch
from magi2.errors import CorruptedArtifactError, InfrastructureError, InputError
from magi2.report.build import build_report
from magi2.types import ARTIFACT_STAGES, Clip, FigureImage, StageName

WRITTEN_BEFORE = Path(__file__).parent / "written_before"
"""What planning, six stages, a failure and a report wrote when documents had no version yet."""
OLD = "aa1becf3c9188b7f"

CLIP = Clip(
    "夜の海 🌊", 2**53 - 1, "tiny", "a" * 64, (FigureImage(1, Path("/in/a.png"), "b" * 64),), ("x",), ("t",), -3
)
MOMENT = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
REPORTED = ReportedClip(
    clip_id=CLIP.clip_id,
    names=("x",),
    flags=("frozen",),
    key="c" * 64,
    stages={"mux": StageOutcome(state="made", seconds=2)},
)
DOCUMENTS: dict[str, Document] = {
    batch_name("night"): BatchDocument(
        batch_id="night",
        name="Night",
        source="night.jsonl",
        created_at=MOMENT,
        options=OptionsDocument(failure_limit=1, on_bad_rows="skip", force=("mux",), priority=7, budget=2.5),
        profiles={"a" * 64: {"name": "tiny", "refiner": None}},
        refused=(RefusedRow(row=3, reason="empty"),),
        shards=1,
        clips=2,
        missing={"mux": 1},
        run_id="manual__1",
    ),
    shard_name("night", 0): ShardDocument(
        batch_id="night", shard=0, profile_digest="a" * 64, clips=(ClipDocument.of(CLIP),)
    ),
    finished_name("night"): FinishedDocument(finished=(FinishedClip.of(CLIP, key="c" * 64, flags=("truncated",)),)),
    results_name("night", 0, StageName.MUX): ResultsDocument(
        batch_id="night",
        shard=0,
        stage=StageName.MUX,
        attempt=2,
        results=(ClipResult(clip_id="d" * 64, state="failed", seconds=0.5, error_code="image", error="broken"),),
    ),
    failure_name("night", 0, StageName.MUX): FailureDocument(error_code="infrastructure", error="the disk is full"),
    report_name("night"): ReportDocument(
        batch_id="night",
        name="Night",
        source="night.jsonl",
        run_id=None,
        failure_limit=1,
        seconds=3.5,
        finished_at=MOMENT,
        stages={"mux": StageCount(computed=1, seconds=2.0)},
        stages_reused=5,
        failed=(ReportedClip(row=3, stage="plan", error_code="input", reason="empty"),),
        flagged=(REPORTED,),
        cost=0.25,
        currency="EUR",
    ),
}
FIELDS = [
    pytest.param(name, field, id=f"{type(document).__name__}.{field}")
    for name, document in DOCUMENTS.items()
    for field in type(document).model_fields
    if field != "version"
]


UNSEALED = SEALED_SINCE - 1
"""The last version whose documents carry no digest of their own."""


def unsealed(name: str, /, **values: Any) -> dict[str, Any]:
    """The JSON value of a document, with other values, as version 2 wrote it."""
    return {**DOCUMENTS[name].model_dump(mode="json"), "version": UNSEALED, **values}


def change(store: LocalStore, name: str, /, **values: Any) -> None:
    """Write a document of version 2 with other values."""
    store.put_document(name, json.dumps(unsealed(name, **values)).encode())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def old(store: LocalStore) -> LocalStore:
    """A store with the documents of a batch from before there were versions."""
    for path in (WRITTEN_BEFORE / OLD).rglob("*.json"):
        store.put_document(f"{batch_folder(OLD)}/{path.relative_to(WRITTEN_BEFORE / OLD)}", path.read_bytes())
    return store


# -- written and read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_read_as_it_was_written(store: LocalStore, name: str) -> None:
    write_document(store, name, DOCUMENTS[name])
    assert read_document(store, name, type(DOCUMENTS[name])) == DOCUMENTS[name]
    assert json.loads(store.get_document(name) or b"")["version"] == VERSION


def test_a_clip_comes_back_with_its_images_names_and_tags() -> None:
    clip = ClipDocument.of(CLIP).to_clip()
    assert clip == CLIP
    assert (clip.names, clip.tags, clip.priority, clip.figures) == (CLIP.names, CLIP.tags, CLIP.priority, CLIP.figures)


def test_moments_are_written_with_their_offset(store: LocalStore) -> None:
    write_document(store, batch_name("night"), DOCUMENTS[batch_name("night")])
    assert json.loads(store.get_document(batch_name("night")) or b"")["created_at"] == MOMENT.isoformat()


def test_counts_of_a_report_are_those_of_its_lists(store: LocalStore) -> None:
    name = report_name("night")
    change(store, name, clips_flagged=99, is_within_limit=False)
    report = load_report(store, "night")
    assert report is not None
    assert (report.counts["clips_flagged"], report.is_within_limit) == (1, True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_keys_that_nobody_knows_are_passed_over(store: LocalStore, name: str) -> None:
    change(store, name, colour="red")
    found = read_document(store, name, type(DOCUMENTS[name]))
    assert found.model_dump(exclude={"version"}) == DOCUMENTS[name].model_dump(exclude={"version"})


def test_all_documents_of_a_batch_can_be_removed_and_no_others(store: LocalStore) -> None:
    for name, document in DOCUMENTS.items():
        write_document(store, name, document)
        write_document(store, name.replace("night", "night-2"), document)
    remove_batch(store, "night")
    assert list(batch_ids(store)) == ["night-2"]
    assert all(store.get_document(name) is None for name in DOCUMENTS)


# -- from before there were versions -----------------------------------------------------------------------------------


def test_a_plan_from_before_versions_is_read(old: LocalStore) -> None:
    assert list(batch_ids(old)) == [OLD]
    batch = load_batch(old, OLD)
    assert (batch.name, batch.clips, batch.shards, batch.options.failure_limit) == ("night", 4, 1, 2)
    assert [(row.row, row.reason) for row in batch.refused] == [(5, "the prompt is empty")]
    assert [clip.flags for clip in load_finished(old, OLD).finished] == [(), ("truncated",)]
    shard = load_shard(old, OLD, 0, None)
    assert [clip.prompt for clip in shard.clips] == ["a kite over dunes 3", "a kite over dunes 4"]
    assert shard.profile.digest() == load_shard_document(old, OLD, 0).profile_digest
    assert sorted(clip.seed for clip in batch_clips(old, OLD)) == [1, 2, 3, 4]


def test_results_and_failures_from_before_versions_are_read(old: LocalStore) -> None:
    states = [row.state for row in read_results(old, OLD, 0, StageName.PREVIEW)]
    assert states == ["made", "failed"]
    assert {document.stage for document in all_results(old)} == set(ARTIFACT_STAGES)
    (failed,) = failed_clips(old, OLD, 0, [StageName.PREVIEW])
    assert failed.startswith("4aff6bf55928")
    failure = load_failure(old, OLD, 0, StageName.PREVIEW)
    assert failure is not None and (failure.error_code, failure.error) == ("infrastructure", "the disk is full")


def test_clips_skipped_in_a_report_from_before_versions_are_done_and_reused(old: LocalStore) -> None:
    report = load_report(old, OLD)
    assert report is not None
    assert [(clip.names, clip.reused) for clip in report.done] == [(("row 3",), False), (("row 1",), True)]
    wanted = {"clips_done": 2, "clips_flagged": 1, "clips_failed": 2, "stages_computed": 6, "stages_reused": 14}
    assert {name: report.counts[name] for name in wanted} == wanted
    assert report.is_within_limit and report.seconds == 0.2


def test_a_batch_from_before_versions_is_reported_run_again_and_entered(old: LocalStore) -> None:
    report = build_report(old, OLD)
    assert [len(clips) for clips in (report.done, report.flagged, report.failed)] == [1, 2, 2]
    assert [clip.seed for clip in select_clips(old, OLD, ["failed"])] == [4]
    stored = read_batch(old, OLD)
    assert (len(stored.clips), stored.batch.clips_total, len(stored.runs)) == (4, 4, 9)


# -- sealed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_byte_of_a_document_changes_unseen(store: LocalStore, name: str) -> None:
    write_document(store, name, DOCUMENTS[name])
    content = store.get_document(name) or b""
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        store.put_document(name, bytes(changed))
        with pytest.raises((CorruptedArtifactError, InputError), match=f"{name}"):
            find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize(
    "change_text",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="line ends"),
        pytest.param(lambda text: text + "\n", id="a line more"),
        pytest.param(lambda text: json.dumps(json.loads(text)), id="written again by another program"),
        pytest.param(lambda text: "{\n" + text.split("\n", 2)[2], id="without its digest"),
        pytest.param(lambda text: text.replace('"sha256"', '"sha257"', 1), id="its digest renamed"),
        pytest.param(lambda text: text.replace(f'"version": {VERSION}', f'"version": {UNSEALED}'), id="made older"),
        pytest.param(lambda text: text.replace('"version"', '"revision"'), id="made old"),
        pytest.param(lambda text: text.replace("sha256", "sha257", 1).replace("version", "versiom", 1), id="two keys"),
        pytest.param(lambda text: text.replace('sha256": "', 'shrsion": "', 1).replace("version", "v"), id="swapped"),
    ],
)
def test_a_document_that_says_the_same_in_other_bytes_is_damaged(
    store: LocalStore, name: str, change_text: Callable[[str], str]
) -> None:
    write_document(store, name, DOCUMENTS[name])
    store.put_document(name, change_text((store.get_document(name) or b"").decode()).encode())
    with pytest.raises(CorruptedArtifactError, match=rf"{name} in .*(clear|again)"):
        find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_in_the_place_of_another_is_damaged(store: LocalStore, name: str) -> None:
    other = name.replace("night", "day")
    write_document(store, other, DOCUMENTS[name])
    store.put_document(name, store.get_document(other) or b"")
    with pytest.raises(CorruptedArtifactError, match=f"{name} in the store .*: SHA-256 is .* belongs elsewhere"):
        find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (batch_name("night"), "clear the plan task"),
        (shard_name("night", 0), "clear the plan task"),
        (results_name("night", 0, StageName.MUX), "clear the stage's task"),
        (failure_name("night", 0, StageName.MUX), "clear the stage's task"),
        (report_name("night"), "clear the report task"),
    ],
)
def test_damage_says_which_document_where_and_who_writes_it_again(store: LocalStore, name: str, hint: str) -> None:
    write_document(store, name, DOCUMENTS[name])
    store.put_document(name, (store.get_document(name) or b"") + b" ")
    with pytest.raises(CorruptedArtifactError) as caught:
        find_document(store, name, type(DOCUMENTS[name]))
    assert str(caught.value).startswith(f"{name} in the store {store.url}: ") and hint in str(caught.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_version_2_is_read_without_a_digest(store: LocalStore, name: str) -> None:
    change(store, name)
    assert read_document(store, name, type(DOCUMENTS[name])) is not None


def test_every_damaged_document_of_a_batch_is_found(store: LocalStore) -> None:
    for name, document in DOCUMENTS.items():
        write_document(store, name, document)
    assert list(find_faults(store, "night")) == []
    for name in DOCUMENTS:
        store.put_document(name, (store.get_document(name) or b"").replace(b"night", b"Night"))
    damaged = {name for name, _ in find_faults(store, "night")}
    assert damaged == {name for name, document in DOCUMENTS.items() if "night" in document.model_dump_json()}


# -- the plan against itself -------------------------------------------------------------------------------------------


def rewrite_old(store: LocalStore, name: str, before: str, after: str) -> None:
    """Change the text of a document that carries no digest."""
    text = (store.get_document(name) or b"").decode()
    assert before in text
    store.put_document(name, text.replace(before, after, 1).encode())


def test_a_changed_profile_is_noticed_without_a_digest_of_the_document(old: LocalStore) -> None:
    rewrite_old(old, batch_name(OLD), '"max_tokens": ', '"max_tokens": 1')
    with pytest.raises(CorruptedArtifactError, match=rf"batch {OLD}: profile \w+ has the settings of .*plan task"):
        load_shard(old, OLD, 0, None)
    with pytest.raises(CorruptedArtifactError, match="has the settings of"):
        read_batch(old, OLD)


def test_a_changed_clip_is_noticed_without_a_digest_of_the_document(old: LocalStore) -> None:
    rewrite_old(old, shard_name(OLD, 0), "a kite over dunes 3", "a kite over dunes 8")
    with pytest.raises(CorruptedArtifactError, match="has the content of"):
        load_shard(old, OLD, 0, None)


@pytest.mark.parametrize(("field", "value"), [("shard", 1), ("batch_id", "day"), ("profile_digest", "e" * 64)])
def test_a_shard_that_is_not_the_planned_one_stops_the_stage(store: LocalStore, field: str, value: object) -> None:
    change(store, shard_name("night", 0), **{field: value})
    with pytest.raises(CorruptedArtifactError, match=r"batches/night/shards/0\.json: .*clear the plan task"):
        load_shard_document(store, "night", 0)


# -- attempts ----------------------------------------------------------------------------------------------------------


def told(store: LocalStore) -> list[int]:
    """The attempts whose results count."""
    return [document.attempt for document in all_results(store)]


def write_attempt(store: LocalStore, attempt: int) -> None:
    clip = ClipResult(clip_id="d" * 64, state="failed" if attempt == 1 else "made", error=f"attempt {attempt}")
    values = {"batch_id": "night", "shard": 0, "stage": StageName.MUX, "attempt": attempt}
    name = results_name("night", 0, StageName.MUX, attempt)
    write_document(store, name, ResultsDocument(**values, results=(clip,)))


@pytest.mark.parametrize("order", list(permutations((1, 2, 10))))
def test_the_highest_attempt_counts_whichever_ends_last(store: LocalStore, order: tuple[int, ...]) -> None:
    for attempt in order:
        write_attempt(store, attempt)
    (result,) = read_results(store, "night", 0, StageName.MUX)
    assert (result.error, told(store)) == ("attempt 10", [10])
    assert failed_clips(store, "night", 0, [StageName.MUX]) == set()


def test_an_old_attempt_does_not_stand_in_for_a_damaged_newer_one(store: LocalStore) -> None:
    write_attempt(store, 1)
    write_attempt(store, 2)
    store.put_document(results_name("night", 0, StageName.MUX, 2), b"{")
    with pytest.raises(CorruptedArtifactError, match=r"0\.mux\.2\.json"):
        read_results(store, "night", 0, StageName.MUX)
    unreadable: dict[str, str] = {}
    assert (list(all_results(store, unreadable=unreadable)), list(unreadable)) == (
        [],
        [results_name("night", 0, StageName.MUX, 2)],
    )


def test_a_later_attempt_counts_before_what_was_written_before_versions(old: LocalStore) -> None:
    name = results_name(OLD, 0, StageName.PREVIEW, 2)
    document = ResultsDocument(batch_id=OLD, shard=0, stage=StageName.PREVIEW, attempt=2, results=())
    write_document(old, name, document)
    assert read_results(old, OLD, 0, StageName.PREVIEW) == ()


def test_the_failure_of_the_highest_attempt_is_told(store: LocalStore) -> None:
    for attempt in (2, 1):
        error = InfrastructureError(f"attempt {attempt}")
        save_failure(store, "night", 0, StageName.MUX, error, attempt=attempt)
    failure = load_failure(store, "night", 0, StageName.MUX)
    assert failure is not None and failure.error == "attempt 2"


# -- a store that does not give one of them ----------------------------------------------------------------------------


class Broken(LocalStore):
    """A store whose disk does not read some documents."""

    broken: frozenset[str] = frozenset()

    def get_document(self, name: str, *, fresh: bool = False) -> bytes | None:
        if not self.broken or name in self.broken:
            raise InfrastructureError(f"{name}: Input/output error")
        return super().get_document(name, fresh=fresh)


def test_one_document_that_the_disk_does_not_read_is_named_and_left_out(tmp_path: Path) -> None:
    store = Broken(tmp_path / "store")
    write_attempt(store, 1)
    other = results_name("day", 0, StageName.MUX)
    write_document(store, other, DOCUMENTS[results_name("night", 0, StageName.MUX)])
    store.broken = frozenset({results_name("night", 0, StageName.MUX)})
    unreadable: dict[str, str] = {}
    list(all_results(store, unreadable=unreadable))
    assert "Input/output error" in unreadable.pop(results_name("night", 0, StageName.MUX))
    assert [name for name, _ in find_faults(store, "night")] == [results_name("night", 0, StageName.MUX)]


def test_a_store_that_reads_nothing_is_no_damage(tmp_path: Path) -> None:
    store = Broken(tmp_path / "store")
    write_attempt(store, 1)
    with pytest.raises(InfrastructureError):
        list(all_results(store, unreadable={}))
    with pytest.raises(InfrastructureError):
        list(find_faults(store, "night"))


# -- damaged, absent, newer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_wrong_value_is_named_by_document_and_field(store: LocalStore, name: str, field: str) -> None:
    is_mapping = isinstance(DOCUMENTS[name].model_dump()[field], dict)
    change(store, name, **{field: 3 if is_mapping else {"no": "value"}})
    with pytest.raises(CorruptedArtifactError, match=rf"^{name}: {field}"):
        find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_key_that_must_be_there_is_named_when_it_is_not(store: LocalStore, name: str, field: str) -> None:
    kind = type(DOCUMENTS[name])
    content = unsealed(name)
    del content[field]
    store.put_document(name, json.dumps(content).encode())
    if kind.model_fields[field].is_required():
        with pytest.raises(CorruptedArtifactError, match=rf"^{name}: {field}: Field required"):
            find_document(store, name, kind)
    else:
        assert find_document(store, name, kind) is not None


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"null", b"3", b'"text"', b"[1]", b"{}", b"[" * 100_000])
def test_what_is_no_such_document_is_named(store: LocalStore, name: str, content: bytes) -> None:
    store.put_document(name, content)
    with pytest.raises(CorruptedArtifactError, match=f"^{name}: "):
        find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize("name", [shard_name("night", 0), finished_name("night")])
def test_a_clip_with_the_id_of_another_is_damage(store: LocalStore, name: str) -> None:
    write_document(store, name, DOCUMENTS[name])
    content = store.get_document(name) or b""
    store.put_document(name, content.replace("夜".encode(), "昼".encode()))
    with pytest.raises(CorruptedArtifactError, match=rf"^{name}: \w+\.0: .*{CLIP.short_id} has the content of"):
        find_document(store, name, type(DOCUMENTS[name]))


def test_an_absent_document_is_none_or_one_line(store: LocalStore) -> None:
    assert load_report(store, "night") is None
    with pytest.raises(InputError, match=r"batches/night/batch.json is not in the store file:///"):
        load_batch(store, "night")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_newer_version_is_told_from_damage(store: LocalStore, name: str) -> None:
    store.put_document(name, json.dumps({"version": VERSION + 1}).encode())
    with pytest.raises(InputError, match=f"{name} has version {VERSION + 1}, .* written by a newer magi2"):
        find_document(store, name, type(DOCUMENTS[name]))


@pytest.mark.parametrize("version", [0, -1, "2", None, 1.5, True])
def test_a_version_that_is_none_is_damage(store: LocalStore, version: object) -> None:
    change(store, batch_name("night"), version=version)
    with pytest.raises(CorruptedArtifactError, match=r"batch\.json: version: "):
        load_batch(store, "night")


def test_a_profile_that_the_batch_lacks_is_named(store: LocalStore) -> None:
    write_document(store, batch_name("night"), DOCUMENTS[batch_name("night")])
    with pytest.raises(CorruptedArtifactError, match="batch night: its document lacks the profile bbbb"):
        load_batch(store, "night").profile("b" * 64)
