"""A store that is away is waited for, once for each outage and up to a limit, before anybody pays for it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magi2.catalog import NewBatch, open_catalog
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import (
    AwayError,
    BatchCancelledError,
    ContractError,
    GroupLostError,
    IdentityError,
    InfrastructureError,
    InputError,
    Magi2Error,
)
from magi2.runtime.store_wait import StoreWait
from magi2.stages.progress import Silent

LIMIT_S = 600.0


class Told(Silent):
    """What is told of outages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def store_away(self, seconds: float, reason: str) -> None:
        self.lines.append(f"away {seconds:.0f}")

    def store_back(self, seconds: float) -> None:
        self.lines.append(f"back {seconds:.0f}")


class Place:
    """A store whose folder can be unmounted, its catalog elsewhere, and a clock at which it comes back."""

    def __init__(self, folder: Path) -> None:
        self.root, self.hidden, self.now = folder / "store", folder / "hidden", 0.0
        self.settings = Settings(store=str(self.root), catalog=f"sqlite:///{folder}/catalog.sqlite")
        self.told, self.back_at = Told(), 0.0
        self.identity: str | None = None
        Deployment(self.settings).store_to_render()

    def away(self, seconds: float) -> None:
        """The folder is empty for so long, as one that is not mounted; what was made there meanwhile is then hidden."""
        self.root.rename(self.hidden)
        self.root.mkdir()
        self.back_at = self.now + seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.hidden.exists() and self.now >= self.back_at:
            shutil.rmtree(self.root)
            self.hidden.rename(self.root)

    def wait(self, *, mount: bool = False, check: Callable[[], None] = lambda: None, **settings: float) -> StoreWait:
        deployment = Deployment(replace(self.settings, **settings), store_identity=self.identity)
        return StoreWait(
            deployment,
            progress=self.told,
            check=check,
            waits_for_mount=mount,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class Work:
    """Fails with these errors in turn, then goes well; `between` happens before each."""

    def __init__(self, *errors: Exception, between: Callable[[], None] = lambda: None) -> None:
        self.errors, self.calls, self.between = list(errors), 0, between

    def __call__(self) -> int:
        self.calls += 1
        self.between()
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def test_work_on_a_store_that_is_away_is_done_when_it_is_back(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    patience = place.wait()
    patience(lambda: None)
    work = Work(AwayError("refused"), AwayError("refused"))
    place.away(150)
    assert patience(work) == 3
    assert place.told.lines == ["away 0", "away 60", "away 120", "back 150", "away 150", "back 152"]
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "it is waited for, 600 s at most: refused" in lines[0] and "is back after 150 s" in lines[3]


def test_folder_that_is_not_mounted_any_more_is_away_whatever_the_error(place: Place) -> None:
    patience = place.wait()
    patience(lambda: None)
    place.away(100)
    work = Work(InputError("no encode artifact in the store"))
    assert patience(work) == 2
    assert place.now >= 100


def test_what_was_made_in_the_folder_below_a_mount_is_made_again(place: Place) -> None:
    patience = place.wait()
    patience(lambda: None)
    place.away(5)
    work = Work()
    assert patience(work) == 2


@pytest.mark.parametrize(
    "error",
    [
        InputError("bad picture"),
        ContractError("NaN"),
        InfrastructureError("No space left"),
        ValueError("a fault of ours"),
    ],
)
def test_error_of_a_store_that_is_there_is_not_waited_for(place: Place, error: Exception) -> None:
    patience, work = place.wait(), Work(error)
    with pytest.raises(type(error)):
        patience(work)
    assert (work.calls, place.now) == (1, 0.0)


def test_group_that_is_lost_is_not_waited_for(place: Place) -> None:
    with pytest.raises(GroupLostError):
        place.wait()(Work(GroupLostError(AwayError("refused"))))
    assert place.now == 0.0


@pytest.mark.parametrize("nested", [False, True])
def test_store_that_stays_away_costs_the_limit_once_and_what_follows_does_not_wait(place: Place, nested: bool) -> None:
    patience = place.wait(store_wait_s=LIMIT_S)
    patience(lambda: None)
    place.away(10 * LIMIT_S)
    work = Work(*[AwayError("refused")] * 9)
    with pytest.raises(AwayError, match="refused"):
        patience((lambda: patience(work)) if nested else work)
    spent = place.now
    assert LIMIT_S <= spent <= LIMIT_S + 30
    with pytest.raises(AwayError):
        patience(work)
    assert (place.now, work.calls) == (spent, 2)


def test_error_that_nobody_would_try_again_is_one_that_is_tried_again_while_the_store_is_away(place: Place) -> None:
    patience = place.wait()
    patience(lambda: None)
    place.away(10 * LIMIT_S)
    with pytest.raises(AwayError, match="no encode artifact"):
        patience(Work(InputError("no encode artifact"), InputError("no encode artifact")))


def test_without_a_limit_nothing_is_waited_for(place: Place) -> None:
    with pytest.raises(AwayError):
        place.wait(store_wait_s=0.0)(Work(AwayError("refused")))
    assert (place.now, place.told.lines) == (0.0, [])


def test_store_that_reads_and_does_not_write_is_asked_less_and_less_often_up_to_the_limit(place: Place) -> None:
    work = Work(*[AwayError("SlowDown")] * 1000)
    with pytest.raises(AwayError):
        place.wait()(work)
    assert work.calls < 30 and LIMIT_S <= place.now <= LIMIT_S + 30


def test_outage_within_lets_the_work_around_begin_again(place: Place) -> None:
    patience = place.wait()
    inner = Work(AwayError("refused"))

    def work() -> int:
        calls = patience(inner)
        if calls == 2:
            raise ContractError("there is no regular file to publish")
        return calls

    assert patience(work) == 3


def test_cancel_ends_the_wait_at_the_next_look(place: Place) -> None:
    def check() -> None:
        if place.now >= 3:
            raise BatchCancelledError("batch night was cancelled")

    patience = place.wait(check=check)
    patience(lambda: None)
    place.away(100)
    with pytest.raises(BatchCancelledError):
        patience(Work(AwayError("refused")))
    assert place.now == 3.0


@pytest.mark.parametrize("mount", [True, False])
def test_task_that_begins_before_the_mount_waits_and_a_command_is_refused(place: Place, mount: bool) -> None:
    catalog = open_catalog(place.settings.catalog or "")
    batch = NewBatch(batch_id="night", name="n", source="s", clips_total=1)
    catalog.batches.create(batch, {})
    place.away(50)
    patience = place.wait(mount=mount)
    if mount:
        assert patience.store_of("night").get_document("identity.json")
        assert place.now >= 50
    else:
        with pytest.raises(IdentityError):
            patience.store_of("night")
        assert place.now == 0.0


def test_nothing_is_made_in_a_folder_that_the_store_is_to_be_mounted_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.settings = replace(place.settings, catalog=None)  # in the store itself
    place.away(10 * LIMIT_S)
    with pytest.raises(AwayError, match="is empty, batch night was planned in it") as caught:
        place.wait(mount=True).store_of("night")
    assert caught.value.retryable and not list(place.root.iterdir())


def test_process_that_begins_during_an_outage_knows_the_store_by_its_identity(place: Place) -> None:
    first = Deployment(place.settings)
    assert first.is_store_there() and first.store_identity
    place.away(50)
    place.identity = first.store_identity
    assert place.wait().store_of("night").get_document("identity.json")
    assert place.now >= 50


def test_tensors_of_the_work_that_failed_are_not_kept_through_the_wait(place: Place) -> None:
    patience, held = place.wait(), list[Magi2Error]()

    def fail() -> None:
        if not held:
            held.append(AwayError("refused"))
            raise held[0]

    patience(fail)
    assert held[0].__traceback__ is None
