"""Running steps: each in processes of its own that never stay, what is done is kept, and an interrupt loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.acceptance.plan import Figure, Options, Outcome, Step, chosen
from magi2.acceptance.runner import Acceptance
from magi2.config.settings import Settings
from magi2.runtime.process import TOKEN

OPTIONS = Options(("tiny",))
AIRFLOW, REHEARSE = chosen(["airflow", "rehearse"], [])


class Own:
    """A step of the caller's that tells how often it was run, and ends as it is told."""

    def __init__(self, verdict: str = "passed") -> None:
        self.verdict, self.runs = verdict, 0

    def __call__(self, options: Options) -> Outcome:
        self.runs += 1
        if self.verdict == "interrupted":
            raise KeyboardInterrupt
        return Outcome("airflow", self.verdict, 0.0, key=options.key, figures=(Figure("runs", self.runs),))


def run(folder: Path, own: Own, options: Options = OPTIONS, *, again: bool = False) -> list[Outcome]:
    acceptance = Acceptance(folder, options, Settings(), own={"airflow": own, "rehearse": Own()})
    return acceptance.run([AIRFLOW], again=again, on_end=lambda outcome: None)


@pytest.mark.parametrize("verdict", ["passed", "slower", "differs"])
def test_a_step_that_came_to_its_end_is_not_run_again_unless_asked_for(verdict: str, tmp_path: Path) -> None:
    own = Own(verdict)
    assert run(tmp_path, own) == run(tmp_path, own)
    assert own.runs == 1
    run(tmp_path, own, again=True)
    assert own.runs == 2
    run(tmp_path, own, Options(("tiny",), layers=3))
    assert own.runs == 3, "other options are another acceptance"


@pytest.mark.parametrize("verdict", ["failed", "not run"])
def test_a_step_that_failed_or_was_not_run_is_tried_again(verdict: str, tmp_path: Path) -> None:
    own = Own(verdict)
    run(tmp_path, own), run(tmp_path, own)
    assert own.runs == 2


def test_an_outcome_that_was_cut_is_run_again(tmp_path: Path) -> None:
    own = Own()
    run(tmp_path, own)
    kept = tmp_path / "steps" / "airflow.json"
    kept.write_text(kept.read_text()[:-20])
    run(tmp_path, own)
    assert own.runs == 2


def test_an_interrupt_keeps_what_was_done_before(tmp_path: Path) -> None:
    first, second = Own(), Own("interrupted")
    acceptance = Acceptance(tmp_path, OPTIONS, Settings(), own={"airflow": first, "rehearse": second})
    with pytest.raises(KeyboardInterrupt):
        acceptance.run([AIRFLOW, REHEARSE], on_end=lambda outcome: None)
    assert [outcome.step for outcome in acceptance.told()] == ["airflow"]
    second.verdict = "passed"
    acceptance.run([AIRFLOW, REHEARSE], on_end=lambda outcome: None)
    assert (first.runs, second.runs) == (1, 2)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Step]:
    """A step whose process runs this code, with its folder in `folder`."""

    def made(code: str) -> Step:
        script = tmp_path / "code.py"
        script.write_text(
            f"import json, os, pathlib, subprocess, sys, time\nfolder = pathlib.Path(sys.argv[1])\n{code}"
        )
        command = [sys.executable, str(script)]
        monkeypatch.setattr("magi2.acceptance.runner._command", lambda step, work, ranks: [*command, str(work)])
        return Step("text", "nothing", "none", "nothing")

    return made


GROWING = "(folder / 'outcome.json').write_text(json.dumps({}))\n".format(
    "dict(step='text', verdict='failed', seconds=1.0, key='', card=None, figures=[dict(name='tokens', value=3)], "
    "differences=[], slower=[], reason='it did not come to its end')"
)


def in_group(folder: Path, step: Step, **more: float) -> Outcome:
    acceptance = Acceptance(folder / "out", OPTIONS, Settings(device="cpu"), **more)
    (outcome,) = acceptance.run([step], on_end=lambda outcome: None)
    return outcome


def members() -> list[int]:
    """Processes of groups that this test's process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            ours = (
                TOKEN.encode() in (place / "environ").read_bytes()
                and b"accept-left" in (place / "cmdline").read_bytes()
            )
        except OSError:
            continue
        found += [int(place.name)] if ours else []
    return found


@pytest.mark.processes
def test_a_step_that_takes_too_long_is_ended_with_its_children_and_keeps_what_it_found(
    step: Callable[[str], Step], tmp_path: Path
) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)', 'accept-left'])\ntime.sleep(300)"
    outcome = in_group(tmp_path, step(GROWING + child), limit_s=2.0)
    assert outcome.verdict == "failed" and outcome.reason == "it took more than 2 s and was ended"
    assert outcome.figures == (Figure("tokens", 3),)
    assert not members()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), 9)", "its processes ended with -9"),
        ("sys.exit(3)", "its processes ended with 3"),
        ("pass", "it did not come to its end"),
    ],
)
def test_a_step_whose_process_dies_has_failed(
    code: str, reason: str, step: Callable[[str], Step], tmp_path: Path
) -> None:
    outcome = in_group(tmp_path, step(code))
    assert outcome.verdict == "failed" and outcome.reason == reason


ALONE = """
import sys
from pathlib import Path
from magi2.acceptance import runner
from magi2.acceptance.plan import Options, Step
from magi2.config.settings import Settings
code = "import time; time.sleep(300)"
runner._command = lambda step, work, ranks: [sys.executable, "-c", code, "accept-left", str(work)]
acceptance = runner.Acceptance(Path(sys.argv[1]), Options(("tiny",)), Settings(device="cpu"))
acceptance.run([Step("text", "", "none", "")], on_end=print)
"""


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_is_stopped_or_killed_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ALONE, str(tmp_path)], stderr=subprocess.DEVNULL)
    while not members():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() != 0
    while members():
        time.sleep(0.05)


@pytest.mark.ranks
@pytest.mark.faults
def test_ranks_exchange_what_they_should_and_a_tiny_model_runs_on_them(tiny_checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "magi2.cli.main", "accept", "--steps", "tools,collectives,preview,refiner"]
    options = ["--profile", "tiny", "--layout", "sp2.cfg1.ep2", "--out", str(tmp_path), "--json", "--limit-s", "600"]
    settings = {"MAGI2_CKPT_ROOT": str(tiny_checkpoint), "MAGI2_STORE": str(tmp_path / "store"), "MAGI2_DEVICE": "cpu"}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **settings}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {step["step"]: step for step in json.loads(done.stdout)["steps"]}
    assert {step["verdict"] for step in steps.values()} == {"passed"}
    assert "all ranks (2).all-to-all rate" in steps["collectives"]["figures"]
    assert steps["preview"]["figures"]["128x64.sent"]["value"] > 0
