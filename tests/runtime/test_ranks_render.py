"""Real stages on several gloo ranks under the real launcher: equal to one rank, whoever dies meanwhile.

Other layouts, the refiner and the decoder come with the marker `faults`: `make test` has them in the tests of the
models, and memory that does not suffice in those of the launcher and the worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.results import read_results
from magi2.errors import InfrastructureError
from magi2.parallel.layout import ParallelLayout
from magi2.runtime.events import Event, Resumed
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import JobResult
from magi2.runtime.watch import Limits
from magi2.stages.snapshots import PICTURES, SNAPSHOTS
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip
from tests.runtime.ranks_shard import BATCH, SNAPSHOT_EVERY, RanksShard, make_shard
from tests.runtime.runtime_helpers import Machine

pytestmark = pytest.mark.ranks
LIMITS = Limits(start=100, meet=100, grace=2, stacks=0.3)
TWO = ParallelLayout.parse("sp2")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, golden: Path) -> RanksShard:
    """The shard before its preview."""
    image = golden / "output" / "images" / "wide_160x90.png"
    return make_shard(tmp_path_factory.mktemp("ranks") / "encoded", tiny_checkpoint, image)


@pytest.fixture(scope="module")
def by_one(encoded: RanksShard, tmp_path_factory: pytest.TempPathFactory) -> RanksShard:
    """The shard's previews, each clip made alone by one rank."""
    shard = encoded.copy(tmp_path_factory.mktemp("ranks") / "by_one")
    for clip in shard.clips:
        assert shard.run_alone(StageName.PREVIEW, [clip]) == ["made"]
    return shard


@pytest.fixture(scope="module")
def refined(by_one: RanksShard, tmp_path_factory: pytest.TempPathFactory) -> RanksShard:
    """The same with the last clip's refined latents."""
    shard = by_one.copy(tmp_path_factory.mktemp("ranks") / "refined")
    assert shard.run_alone(StageName.REFINE, shard.clips[-1:]) == ["made"]
    return shard


@pytest.fixture(scope="module")
def by_two(encoded: RanksShard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanksShard]:
    """The shard's previews by two ranks in one launch."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as monkeypatch:
        crew = Crew(Machine(folder, monkeypatch), encoded.copy(folder / "store"), monkeypatch)
        assert [clip.state for clip in crew.run().clips] == ["made"] * 2
        assert crew.machine.processes() == {}
        yield crew.shard


class Crew:
    """Launches stages of a shard on many ranks."""

    def __init__(self, machine: Machine, shard: RanksShard, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine, self.shard = machine, shard
        self.heard: list[Event] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("MAGI2_CKPT_ROOT", str(shard.checkpoint))
        monkeypatch.setenv("MAGI2_DEVICE", "cpu")
        monkeypatch.setenv("MAGI2_SNAPSHOT_EVERY", str(SNAPSHOT_EVERY))

    def run(
        self,
        stage: StageName = StageName.PREVIEW,
        layout: ParallelLayout = TWO,
        *,
        number: int = 0,
        faults: Sequence[dict[str, object]] = (),
    ) -> JobResult:
        module = "tests.runtime.stub_ranks_worker" if faults else "magi2.runtime.worker"
        job = StageJob(BATCH, number, stage, str(self.shard.store), layout=layout, worker_module=module)
        with self._monkeypatch.context() as patch:
            patch.setenv("STUB_FAULTS", json.dumps(faults))
            return self.machine.launcher(LIMITS).run(job, on_event=self.heard.append)

    def resumed(self) -> list[tuple[str, int]]:
        """Which clips went on from which step."""
        return [(event.clip_id, event.done) for event in self.heard if isinstance(event, Resumed)]

    def snapshots(self) -> list[str]:
        names = LocalStore(self.shard.store).list_documents(SNAPSHOTS)
        return [name for name in names if not name.startswith(PICTURES)]


@pytest.fixture
def crew(machine: Machine, encoded: RanksShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    return Crew(machine, encoded.copy(tmp_path / "copy"), monkeypatch)


def require_equal(by_ranks: RanksShard, by_one: RanksShard, stage: StageName, *clips: Clip) -> None:
    for clip in clips:
        assert by_ranks.distance(by_one, stage, clip) <= 1e-5
        manifest = LocalStore(by_ranks.store).find(stage, by_ranks.key(stage, clip))
        assert manifest is not None and manifest.report["layout"] == "sp2.cfg1.ep2"


def test_two_ranks_make_what_one_makes(by_one: RanksShard, by_two: RanksShard) -> None:
    require_equal(by_two, by_one, StageName.PREVIEW, *by_two.clips)


@pytest.mark.faults
def test_two_ranks_refine_what_one_refines(crew: Crew, by_two: RanksShard, refined: RanksShard) -> None:
    crew.shard = by_two.copy(crew.shard.store.parent / "previews")
    clip = crew.shard.clips[-1]
    crew.shard.plan(1, [clip])
    assert [result.state for result in crew.run(StageName.REFINE, number=1).clips] == ["made"]
    require_equal(crew.shard, refined, StageName.REFINE, clip)


def test_clip_alone_is_the_same_clip_in_any_place_of_a_shard(
    encoded: RanksShard, by_one: RanksShard, tmp_path: Path
) -> None:
    together = encoded.copy(tmp_path / "together")
    assert together.run_alone(StageName.PREVIEW, together.clips[::-1]) == ["made"] * 2
    for clip in together.clips:
        assert together.digests(StageName.PREVIEW, clip) == by_one.digests(StageName.PREVIEW, clip)


@pytest.mark.faults
def test_two_ranks_decode_the_bits_of_one(crew: Crew, refined: RanksShard) -> None:
    shard = refined.copy(crew.shard.store.parent / "latents")
    clip = shard.clips[-1]
    shard.plan(1, [clip])
    alone = shard.copy(shard.store.parent / "alone")
    crew.shard = shard
    assert [result.state for result in crew.run(StageName.DECODE, number=1).clips] == ["made"]
    assert alone.run_alone(StageName.DECODE, [clip]) == ["made"]
    assert shard.digests(StageName.DECODE, clip) == alone.digests(StageName.DECODE, clip)


@pytest.mark.faults
def test_four_ranks_in_two_guidance_halves_make_what_one_makes(crew: Crew, by_one: RanksShard) -> None:
    clip = crew.shard.clips[0]
    crew.shard.plan(1, [clip])
    assert [c.state for c in crew.run(layout=ParallelLayout.parse("sp2.cfg2.ep4"), number=1).clips] == ["made"]
    assert crew.shard.distance(by_one, StageName.PREVIEW, clip) <= 1e-5
    assert crew.machine.processes() == {}


def test_killed_rank_is_named_and_its_clip_goes_on_from_the_snapshot(crew: Crew, by_two: RanksShard) -> None:
    clip = crew.shard.clips[1]
    crew.shard.plan(1, [clip])
    fault = {"kind": "kill", "rank": 0, "seed": 2, "step": 3, "once": str(crew.shard.store.parent / "struck")}
    with pytest.raises(InfrastructureError, match=r"rank 0 \(process \d+\) died at clip \w+ step [23]/3"):
        crew.run(number=1, faults=[fault])
    assert crew.machine.processes() == {} and crew.machine.lock_is_free()
    assert len([name for name in crew.snapshots() if name.endswith(".safetensors")]) == 1  # pictures come when they can
    elsewhere = crew.shard.copy(crew.shard.store.parent / "elsewhere")
    assert [c.state for c in crew.run(number=1, faults=[fault]).clips] == ["made"]
    assert crew.resumed() == [(clip.clip_id, 2)]
    assert crew.shard.digests(StageName.PREVIEW, clip) == by_two.digests(StageName.PREVIEW, clip)
    assert crew.snapshots() == []
    assert elsewhere.run_alone(StageName.PREVIEW, [clip]) == ["made"]
    assert elsewhere.distance(by_two, StageName.PREVIEW, clip) <= 1e-5


@pytest.mark.faults
def test_clips_without_enough_memory_fail_alone_and_a_new_group_goes_on_only_after_one_rank_alone_had_too_little(
    crew: Crew, by_two: RanksShard
) -> None:
    first, last = crew.shard.clips
    everywhere, lost = (make_clip(crew.shard.profile, last.prompt, seed) for seed in (3, 4))
    crew.shard.plan(1, [everywhere, first, lost, last])
    oom = {"kind": "oom", "step": 2}
    result = crew.run(number=1, faults=[{**oom, "seed": 3}, {**oom, "seed": lost.seed, "rank": 1}])
    states = {clip.clip_id: (clip.state, clip.error_code) for clip in result.clips}
    assert states == {
        everywhere.clip_id: ("failed", "out_of_memory"),
        first.clip_id: ("made", None),
        lost.clip_id: ("failed", "out_of_memory"),
        last.clip_id: ("made", None),
    }
    said = next(clip.error or "" for clip in result.clips if clip.clip_id == everywhere.clip_id)
    assert "141.00 GiB" in said and "rank 0 held" in said
    assert len(list((crew.machine.folder / "logs").iterdir())) == 2
    rows = read_results(LocalStore(crew.shard.store), BATCH, 1, StageName.PREVIEW)
    assert [row.state for row in rows] == ["failed", "reused", "failed", "made"]
    for clip in (first, last):
        assert crew.shard.digests(StageName.PREVIEW, clip) == by_two.digests(StageName.PREVIEW, clip)
