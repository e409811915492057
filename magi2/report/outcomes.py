"""What became of the clips of a batch's shards, by what the stages told in its documents; torch-free."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from magi2.artifacts.ahead import in_order
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import fault_of, load_shard_document, results_name, work_of
from magi2.batches.failures import load_failure
from magi2.batches.receipts import load_receipts
from magi2.batches.schema import (
    BatchDocument,
    ClipDocument,
    ClipResult,
    FinishedClip,
    FinishedFile,
    Receipt,
    ReportedClip,
    ResultsDocument,
    StageOutcome,
)
from magi2.config.profile import Profile
from magi2.errors import (
    MAX_PROMPT,
    MAX_REASON,
    ConfigError,
    CorruptedArtifactError,
    InfrastructureError,
    InputError,
    cut,
)
from magi2.quality.defects import Judgement, judge
from magi2.quality.measures import Measures
from magi2.quality.thresholds import Thresholds
from magi2.recipes.book import mux_recipe
from magi2.recipes.captions import stored_caption
from magi2.recipes.marking import marked_texts
from magi2.recipes.result import measures_of
from magi2.types import StageName, clip_stages

logger = logging.getLogger(__name__)

StoredFiles = dict[str, tuple[tuple[str, ...], dict[str, Any] | None]]


class BatchResults:
    """What the stages told of a batch's clips: in their present shards, and in those of earlier plans of the batch.

    What any attempt of the batch made counts as made by it, though a later one tells that it reused it.
    """

    def __init__(
        self,
        documents: Iterable[ResultsDocument],
        made: Collection[tuple[str, StageName]],
        unreadable: Mapping[str, str],
    ) -> None:
        self._unreadable = unreadable  # filled while the documents are read
        self._present: dict[tuple[int, StageName, str], ClipResult] = {}
        self._keys: dict[tuple[StageName, str], list[str]] = defaultdict(list)
        rows = [(document, row) for document in documents for row in document.results]
        self._made = {*made, *((row.clip_id, document.stage) for document, row in rows if row.state == "made")}
        for document, row in rows:
            if row.state == "reused" and self.was_made(row.clip_id, document.stage):
                row = row.model_copy(update={"state": "made"})
            self._present[document.shard, document.stage, row.clip_id] = row
            if row.has_artifact and row.key:
                self._keys[document.stage, row.clip_id].append(row.key)

    def fault(self, name: str) -> str | None:
        """Why the results of the same work as those of this name could not be read, if so."""
        return next((why for found, why in self._unreadable.items() if work_of(found) == work_of(name)), None)

    def of(self, shard: int, stage: StageName, clip_id: str) -> ClipResult | None:
        """What a stage of a shard told of a clip."""
        return self._present.get((shard, stage, clip_id))

    def keys(self, stage: StageName, clip_id: str) -> list[str]:
        """The keys under which any shard told that it has the clip's artifact."""
        return self._keys.get((stage, clip_id), [])

    def was_made(self, clip_id: str, stage: StageName) -> bool:
        """Whether an attempt of this batch made a stage of the clip."""
        return (clip_id, stage) in self._made


class ShardOutcomes:
    """What became of the clips of one shard."""

    def __init__(
        self, store: ArtifactStore, batch: BatchDocument, shard: int, results: BatchResults, thresholds: Thresholds
    ) -> None:
        self._store, self._batch, self._shard, self._results = store, batch, shard, results
        self._thresholds = thresholds
        document = load_shard_document(store, batch.batch_id, shard)
        self.profile_digest = document.profile_digest
        self._finished = document.finished
        self._stored = stored_files(store, document.finished.values()) if document.finished else {}
        self._files = {clip.clip_id: self._file(clip) for clip in document.clips}
        self._planned = document.clips
        receipts = in_order(self._receipts, document.clips)
        self._brought = {clip.clip_id: found for clip, found in zip(document.clips, receipts, strict=True)}
        settings = batch.settings(self.profile_digest)
        self.passes = {
            clip.clip_id: clip_stages(settings, is_delivered=bool(clip.deliveries)) for clip in document.clips
        }
        """The stages that each clip passes, by its id."""

    def clips(self) -> list[ReportedClip]:
        """Every clip of the shard with its outcome."""
        return [self._clip(clip) for clip in self._planned]

    def _row(self, stage: StageName, clip_id: str) -> ClipResult | None:
        """What a stage told of a clip; of one whose file is there not what failed in an attempt before it was."""
        row = self._results.of(self._shard, stage, clip_id)
        is_old = row and stage is not StageName.DELIVER and self._files[clip_id] and not row.has_artifact
        return None if is_old else row

    def _clip(self, planned: ClipDocument) -> ReportedClip:
        clip_id = planned.clip_id
        flags: list[str] = []
        stages: dict[str, StageOutcome] = {}
        file = self._files[clip_id]
        receipts = self._brought[clip_id]
        for stage in self.passes[clip_id]:
            row = self._row(stage, clip_id)
            if row is None:
                if file and (stage is not StageName.DELIVER or len(receipts) == len(planned.deliveries)):
                    continue
                row = self._unreached(stage, clip_id)
            flags += row.flags
            stages[stage.value] = StageOutcome(state=row.state, seconds=row.seconds or 0.0)
            if not row.has_artifact:
                reason = cut(row.error or row.state, MAX_REASON)
                outcome: dict[str, Any] = {"stage": stage.value, "error_code": row.error_code, "reason": reason}
                return reported(planned, flags=flags, stages=stages, deliveries=receipts, **outcome)
        flags += file.flags if file else ()
        is_reused = file is not None and not self._results.was_made(clip_id, StageName.MUX) and file.state == "reused"
        return reported(
            planned,
            flags=flags,
            stages=stages,
            key=file and file.key,
            reused=is_reused,
            deliveries=receipts,
            quality=judged(planned, file.measures, self._thresholds) if file else None,
        )

    def _receipts(self, clip: ClipDocument) -> tuple[Receipt, ...]:
        """Where a clip was brought."""
        if not clip.deliveries:
            return ()
        try:
            receipts = load_receipts(self._store, self._batch.batch_id, clip.clip_id)
        except (CorruptedArtifactError, InputError, InfrastructureError) as error:
            logger.warning("clip %s counts as brought nowhere: %s", clip.clip_id[:12], fault_of(self._store, error))
            return ()
        wanted = {(each.target, each.name) for each in clip.deliveries}
        return tuple(each for each in receipts if each.delivered_at and (each.target, each.wanted) in wanted)

    def _unreached(self, stage: StageName, clip_id: str) -> ClipResult:
        """What stands for a clip's result in a stage that did not come to an end."""
        error_code: str | None = CorruptedArtifactError.code
        reason = self._results.fault(results_name(self._batch.batch_id, self._shard, stage))
        if reason is None:
            error_code, reason = self._failure(stage)
        return ClipResult(clip_id=clip_id, state="failed", error_code=error_code, error=reason)

    def _failure(self, stage: StageName) -> tuple[str | None, str]:
        """The code and the reason of a stage that ended without results."""
        try:
            cause = load_failure(self._store, self._batch.batch_id, self._shard, stage)
        except (CorruptedArtifactError, InputError, InfrastructureError) as error:
            return CorruptedArtifactError.code, fault_of(self._store, error)
        return (cause.error_code, cause.error) if cause else (None, "its task has not finished")

    def _file(self, clip: ClipDocument) -> ClipResult | None:
        """The result that says that a clip's file is there, whatever other attempts say of its earlier stages.

        A worker that was ended tells nothing of its last stage. So a file in the store counts too when it is one that
        this batch named, or is made from what this batch decoded; not where stages are forced, which compare with it.
        """
        if finished := self._finished.get(clip.clip_id):
            return stored_file(clip.clip_id, finished, self._stored)
        told = self._results.of(self._shard, StageName.MUX, clip.clip_id)
        if told and told.has_artifact:
            return told
        if self._batch.options.force:
            return None
        found = (_find_file(self._store, key) for key in self._file_keys(clip))
        manifest = next((manifest for manifest in found if manifest), None)
        if manifest is None:
            return None
        return ClipResult(
            clip_id=clip.clip_id,
            state="made",
            key=manifest.key,
            flags=tuple(manifest.flags),
            measures=measures_of(manifest),
        )

    def _file_keys(self, clip: ClipDocument) -> list[str]:
        named = self._results.keys(StageName.MUX, clip.clip_id)
        decoded = self._results.keys(StageName.DECODE, clip.clip_id)
        marking = self._batch.marking.get(self.profile_digest)
        if not decoded or marking is None:
            return named
        try:
            profile = self._batch.profile(self.profile_digest)
        except ConfigError as error:
            logger.warning("files that no result names are not looked for: %s", error)
            return named
        texts = self._written_texts(profile, clip)
        return [*named, *(mux_recipe(profile, marking, text, clip.seed, key).key for text in texts for key in decoded)]

    def _written_texts(self, profile: Profile, clip: ClipDocument) -> list[dict[str, str]]:
        """What recipes of the clip's file may say of its texts: one for each caption that any shard told of."""
        if profile.delivery.provenance != "full":
            return [{}]
        captions = (stored_caption(self._store, key) for key in self._results.keys(StageName.ENHANCE, clip.clip_id))
        return [marked_texts(profile, clip.prompt, caption.text) for caption in captions if caption]


def stored_files(store: ArtifactStore, files: Iterable[FinishedClip | FinishedFile]) -> StoredFiles:
    """The flags and measures of files that were there when a batch was planned, by key: all are looked for at once."""
    found: StoredFiles = {}
    for look in store.look(StageName.MUX, {file.key for file in files if file.key}):
        if isinstance(look.fault, InfrastructureError):
            raise look.fault
        manifest = look.manifest
        found[look.key] = (manifest.flags, measures_of(manifest)) if manifest else (("damaged_since",), None)
    return found


def stored_file(clip_id: str, file: FinishedClip | FinishedFile, files: StoredFiles) -> ClipResult:
    """What stands for the result of a file that was there when a batch was planned; its flags say if it is no more."""
    flags, measures = files.get(file.key or "", (("removed_since",), None))
    flags = (*file.flags, *flags)
    return ClipResult(clip_id=clip_id, state="reused", key=file.key, flags=flags, measures=measures)


def _find_file(store: ArtifactStore, key: str) -> Manifest | None:
    try:
        return store.find(StageName.MUX, key)
    except CorruptedArtifactError:
        return None  # it will be made anew


def judged(planned: ClipDocument, measures: object, thresholds: Thresholds) -> Judgement | None:
    """How a delivered clip is to be judged by what was measured; None where nothing was."""
    found = Measures.of(measures)
    return judge(found, planned.expect, thresholds) if found else None


def reported(
    planned: ClipDocument, *, flags: Sequence[str], quality: Judgement | None = None, **outcome: Any
) -> ReportedClip:
    """A planned clip as a report shows it, with each flag once, those of its defects last."""
    return ReportedClip(
        clip_id=planned.clip_id,
        names=planned.names,
        prompt=cut(planned.prompt, MAX_PROMPT),
        profile=planned.profile_name,
        seed=planned.seed,
        flags=tuple(dict.fromkeys([*flags, *(quality.flags if quality else ())])),
        quality=quality.to_json() if quality else None,
        **outcome,
    )
