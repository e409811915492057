"""Whichever way the demonstration ends, what is finished is delivered and a line says how to go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from magi2.artifacts.address import open_store
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import Batch
from magi2.batches.plan import BatchOptions, plan_batch, save_plan
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION
from magi2.recipes.load import recipe_book
from magi2.report.build import build_report, save_report
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, Delivery, StageName
from tests.report_samples import NO_REFINER
from tools import demo
from tools.demo import Demonstration, command_line, hear_signals

RUN, AGAIN = "manual__1", "make demo"
PROMPT = "A large red circle moves slowly from left to right on a blue background, with a low tone."


class Airflow:
    """In place of Airflow: one run, whose state is what `answer` says; `events` are those of its life."""

    url, home = "http://127.0.0.1", Path("/airflow")

    def __init__(self, answer: Callable[[], str]) -> None:
        self._answer = answer
        self.events: list[str] = []

    def __enter__(self) -> Self:
        self.events.append("started")
        return self

    def __exit__(self, *error: object) -> None:
        self.events.append("stopped")

    def unpause(self, dag_id: str) -> None:
        self.events.append(f"unpaused {dag_id}")

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        return RUN

    def require_alive(self) -> None: ...

    def state(self, dag_id: str, run_id: str) -> str:
        return self._answer()

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def settings(tmp_path: Path, tiny_checkpoint: Path) -> Settings:
    targets = json.dumps({demo.TARGET: str(tmp_path / "clips")})
    return Settings(ckpt_root=tiny_checkpoint, store=str(tmp_path / "store"), device="cpu", delivery_targets=targets)


@pytest.fixture
def store(settings: Settings, exact: Path, tmp_path: Path) -> ArtifactStore:
    """A planned batch of three clips; the files of two are stored, but no stage has told its results yet."""
    (tmp_path / "clips").mkdir()
    store = open_store(settings.store)
    book = recipe_book(NO_REFINER, settings, CheckpointFolder(settings.checkpoint_root()))
    clips = [row(seed) for seed in (1, 2, 3)]
    plan = plan_batch(
        Batch(tuple(clips), ()),
        name="shapes",
        source="shapes.jsonl",
        store=store,
        book_of=lambda digest: book,
        options=BatchOptions(),
        origin={"run_id": RUN},
    )
    save_plan(plan, store)
    for clip in clips[:2]:
        finish(store, book, clip, exact)
    return store


def row(seed: int) -> Clip:
    place = Delivery(demo.TARGET, f"row_{seed}.mp4")
    return Clip(PROMPT, seed, NO_REFINER.name, NO_REFINER.digest(), names=(f"row {seed}",), deliveries=(place,))


def finish(store: ArtifactStore, book: RecipeBook, clip: Clip, file: Path) -> None:
    caption = Caption(clip.prompt, mode_requested=book.enhancement_mode, mode_used=book.enhancement_mode)
    mux = book.chain(clip, caption.text)[StageName.MUX]
    made = [
        (book.enhance(clip), {CAPTION: caption.to_json()}),
        (mux, {CLIP: file.read_bytes(), POSTER: b"poster", CONTACT_SHEET: b"sheet"}),
    ]
    for recipe, files in made:
        with store.stage_folder(recipe.stage, recipe.key) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
            store.publish(ManifestDraft(recipe), {name: folder / name for name in files})


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(answer: Callable[[], str], settings: Settings, folder: Path, *, stays_up: bool = False) -> tuple[int, Airflow]:
    airflow = Airflow(answer)
    demonstration = Demonstration(airflow, settings, Path("shapes.jsonl"), "demo", folder)  # type: ignore[arg-type]
    return demonstration.run(stays_up=stays_up, again=AGAIN), airflow


def raises(error: BaseException) -> Callable[[], str]:
    def answer() -> str:
        raise error

    return answer


def interrupts(number: signal.Signals) -> Callable[[], str]:
    def answer() -> str:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal did not interrupt")

    return answer


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (lambda: "failed", 1, "the run ended as failed"),
        (raises(RuntimeError("nothing has moved for 40 min")), 1, "nothing has moved for 40 min"),
        (raises(RuntimeError("scheduler ended")), 1, "scheduler ended"),
        (interrupts(signal.SIGINT), 130, "SIGINT: stops Airflow"),
        (interrupts(signal.SIGTERM), 143, "SIGTERM: stops Airflow"),
    ],
)
def test_finished_clips_are_delivered_at_every_end(
    answer: Callable[[], str],
    code: int,
    reason: str,
    settings: Settings,
    store: ArtifactStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hear_signals()
    found, airflow = run(answer, settings, tmp_path / "clips")
    said = capsys.readouterr().err
    assert found == code
    assert sorted(path.name for path in (tmp_path / "clips").glob("*.mp4")) == ["row_1.mp4", "row_2.mp4"], said
    assert len(list((tmp_path / "clips").glob("*.json"))) == 2  # whole, with their sidecars
    assert (tmp_path / "clips" / demo.SHEET).is_file()
    assert reason in said
    assert said.count("as asked: colour red") == 2
    assert said.splitlines()[-1] == "the same command goes on from here: make demo"
    assert airflow.events == ["started", "unpaused magi2_render_batch", "stopped"]


def test_unforeseen_error_is_raised_after_the_delivery(
    settings: Settings, store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LookupError):
        run(raises(LookupError("never thought of")), settings, tmp_path / "clips")
    assert len(list((tmp_path / "clips").glob("*.mp4"))) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "the same command goes on from here: make demo"


def test_interruption_before_a_plan_says_so(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hear_signals()
    assert run(interrupts(signal.SIGINT), settings, tmp_path / "clips")[0] == 130
    assert "no clip was planned yet" in capsys.readouterr().err
    assert not (tmp_path / "clips").exists()


def test_run_with_a_report_tells_its_numbers(
    settings: Settings, store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = demo.find_batch(store, RUN)
    assert batch is not None
    save_report(build_report(store, batch.batch_id), store)
    assert run(lambda: "success", settings, tmp_path / "clips")[0] == 0
    out, said = capsys.readouterr()
    assert json.loads(out)["clips_failed"] == 3  # the stages have not told what they made
    assert said.splitlines()[-1] == "the same command finds all of it here: make demo"


def test_page_that_is_kept_up_ends_with_an_interruption_and_the_state_of_the_run(
    settings: Settings, store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear_signals()
    monkeypatch.setattr(demo.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGINT))
    code, airflow = run(lambda: "success", settings, tmp_path / "clips", stays_up=True)
    assert (code, airflow.events[-2:]) == (0, ["unpaused magi2_watch", "stopped"])


def test_second_signal_ends_the_process_at_once() -> None:
    hear_signals()
    with pytest.raises(demo.Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], "make demo"),
        (["--ui"], "make ui"),
        (["--batch", "my clips.jsonl"], "python -m tools.demo --batch 'my clips.jsonl'"),
    ],
)
def test_command_to_go_on_is_the_one_that_was_given(arguments: list[str], command: str) -> None:
    assert command_line(arguments) == command
