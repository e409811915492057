"""What the plugins of the tests promise: an order by tier, one line for missing programs, and what it all cost."""

from __future__ import annotations

import re

import pytest

from tests.tiers import OF_FOLDERS

MARKED = """
import pytest

@pytest.mark.servers
def test_served(): ...

@pytest.mark.slow
@pytest.mark.servers
def test_both(): ...

@pytest.mark.parametrize("marker", [
    pytest.param(name, marks=getattr(pytest.mark, name))
    for name in ("slow", "ranks", "processes", "demo_world", "faults")
])
def test_marked(marker): ...

def test_plain(): ...
"""


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of these tests load no plugins that take longer than they do."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_fast_tests_come_first_and_airflow_and_servers_last(pytester: pytest.Pytester) -> None:
    for folder in ("airflow", "browser"):
        pytester.mkdir(folder).joinpath(f"test_{folder}_site.py").write_text(f"def test_{folder}(): ...")
    pytester.makepyfile(test_zone=MARKED)
    result = pytester.runpytest_inprocess("-p", "tests.tiers", "--collect-only", "-q")
    names = [line.partition("::test_")[2] for line in result.outlines if "::test_" in line]
    slow = [f"marked[{name}]" for name in ("slow", "ranks", "processes", "demo_world", "faults")]
    assert names == ["plain", *slow, "airflow", "browser", "served", "both"]
    pytester.runpytest_inprocess("-p", "tests.tiers", "-m", "fast").assert_outcomes(passed=1, deselected=7)


def test_folders_without_fast_tests_are_not_imported_for_these(pytester: pytest.Pytester) -> None:
    for folder in OF_FOLDERS:
        pytester.mkdir(folder).joinpath(f"test_of_{folder}.py").write_text("raise ImportError('costly')")
    pytester.makepyfile("def test_plain(): ...")
    pytester.runpytest_inprocess("-p", "tests.tiers", "-m", "fast").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("-p", "tests.tiers").assert_outcomes(errors=len(OF_FOLDERS))


STARTING = """
import multiprocessing, os, subprocess

import pytest

STARTS = {
    "subprocess": lambda: subprocess.run(["true"]),
    "spawn": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    "fork": lambda: os.fork() or os._exit(0),
    "shell": lambda: os.system("true"),
}

@pytest.fixture
def started():
    subprocess.run(["true"])

def test_fixture(started): ...

@pytest.mark.parametrize("how", STARTS)
def test_body(how):
    try:
        STARTS[how]()
    except Exception:  # which swallows no refusal
        pass

@pytest.mark.slow
def test_slow(started): ...
"""


@pytest.mark.slow
def test_fast_test_that_starts_a_process_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STARTING)
    result = pytester.runpytest_inprocess("-p", "tests.tiers", "-p", "tests.no_processes")
    result.assert_outcomes(passed=1, failed=4, errors=1)
    result.stdout.fnmatch_lines(["*a fast test starts a process (os.fork): test in this process, or mark the test*"])


PROGRAMS = """
import pytest

@pytest.mark.programs("redis-server", "wget")
def test_one(): ...

@pytest.mark.programs("redis-server")
def test_other(): ...

def test_plain(): ...
"""


def test_missing_programs_are_named_in_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    pytester.makepyfile(PROGRAMS)
    result = pytester.runpytest_inprocess("-p", "tests.programs")
    result.assert_outcomes(passed=1, skipped=2)
    line = "2 tests were skipped; to run them: apt-get install redis-server wget"
    assert [found for found in result.outlines if "apt-get" in found] == [line]
    pytester.runpytest_inprocess("-p", "tests.programs", "--all-programs").assert_outcomes(passed=1, errors=2)


COSTLY = """
import subprocess, sys

CODE = "import time\\nwhile time.process_time() < 0.4: pass"

def test_costly():
    subprocess.run([sys.executable, "-c", CODE], check=True)
"""


@pytest.mark.slow
def test_what_a_child_cost_is_counted_for_its_test(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("all") / "some"
    folder.mkdir()
    (folder / "test_costly.py").write_text(COSTLY)
    result = pytester.runpytest_inprocess("-p", "tests.cpu_seconds", "--cpu-durations=1")
    said = "\n".join(result.outlines)
    for name in ("all/some/test_costly.py::test_costly", "some"):
        found = re.search(rf"^ *([\d.]+)  {name}$", said, re.MULTILINE)
        assert found and float(found[1]) >= 0.4
    assert re.search(r"^CPU seconds: \d+$", said, re.MULTILINE)


SHARED = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_all_here(number, worker_id):
    with open("{place}.workers", "a") as file:
        file.write(worker_id + "\\n")
"""


@pytest.mark.slow
def test_a_file_or_a_site_has_one_worker(pytester: pytest.Pytester) -> None:
    site = pytester.mkdir("browser")
    for number in range(2):
        site.joinpath(f"test_site_{number}.py").write_text(SHARED.format(place="browser"))
    pytester.makepyfile(**{f"test_{place}": SHARED.format(place=place) for place in ("one", "two", "three")})
    plugins = ("-p", "xdist", "-p", "tests.tiers", "-p", "tests.workers")
    pytester.runpytest_inprocess(*plugins, "--numprocesses=2").assert_outcomes(passed=5 * 6)
    workers = {path.stem: path.read_text().split() for path in pytester.path.glob("*.workers")}
    assert {place: len(names) for place, names in workers.items()} == {"browser": 12, "one": 6, "two": 6, "three": 6}
    assert all(len(set(names)) == 1 for names in workers.values()), workers
    assert len({name for names in workers.values() for name in names}) == 2
