"""A process that dies at any step of a local store leaves no artifact or a complete one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore, Manifest, ManifestDraft, Recipe
from magi2.errors import CorruptedArtifactError

pytestmark = pytest.mark.processes
STAGE = "preview"
CONTENT = {"latents.bin": b"abc" * 1000, "sound.wav": b"xyz"}

# Runs one action in a child per step. A step is a call from the artifact code into the operating system (open, write,
# fsync, link, unlink, mkdir ...), since nothing changes on the disk between two of them; child n gets SIGKILL right
# before its n-th one.
DRIVER = r"""
import json, os, signal, sys
from pathlib import Path
from magi2.artifacts import LocalStore, ManifestDraft, Recipe

def publish(store, recipe, content):
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        for name in content:
            (folder / name).write_bytes(content[name].encode())
        store.publish(ManifestDraft(recipe), {name: folder / name for name in content})

def act(action, store, recipe, content):
    if action == "publish":
        publish(store, recipe, content)
    elif action == "remove":
        store.remove(recipe.stage, recipe.key)
    else:
        store.put_document("report.json", b"new" * 1000)

def killing(step):
    calls = 0
    def trace(frame, event, called):
        nonlocal calls
        if event == "c_call" and reaches_the_system(called) and ours(frame):
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
    return trace

def reaches_the_system(called):
    owner = getattr(called, "__self__", None)  # a module, or the file whose method it is
    return getattr(owner, "__name__", type(owner).__module__) in ("posix", "io", "_io", "fcntl")

WATCHED = ("artifacts/base.py", "artifacts/local.py", "artifacts/disk.py", "magi2/files.py")

def ours(frame):
    while frame is not None:
        if frame.f_code.co_filename.endswith(WATCHED):
            return True
        if not frame.f_code.co_filename.endswith(("pathlib.py", "contextlib.py", "shutil.py")):
            return False
        frame = frame.f_back
    return False

action, root, content = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
recipe = Recipe("preview", 1, seed=7)
step = 0
while True:
    step += 1
    folder = root / f"{step:04}"
    store = LocalStore(folder)
    if action == "remove":
        publish(store, recipe, content)
    if action == "document":
        store.put_document("report.json", b"old" * 1000)
    pid = os.fork()
    if pid == 0:
        sys.setprofile(killing(step))
        act(action, store, recipe, content)
        sys.setprofile(None)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status))
"""


def run_killed_at_every_step(action: str, root: Path) -> list[LocalStore]:
    """The stores that the killed children left, in the order of the steps."""
    content = json.dumps({name: data.decode() for name, data in CONTENT.items()})
    subprocess.run([sys.executable, "-c", DRIVER, action, str(root), content], check=True, timeout=120)
    folders = sorted(root.iterdir())
    assert len(folders) > 20  # the tracer saw the steps
    return [LocalStore(folder) for folder in folders]


def publish(store: LocalStore) -> Manifest:
    recipe = Recipe(STAGE, 1, seed=7)
    with store.stage_folder(STAGE, recipe.key) as folder:
        for name, data in CONTENT.items():
            (folder / name).write_bytes(data)
        return store.publish(ManifestDraft(recipe), {name: folder / name for name in CONTENT})


def is_complete(store: LocalStore) -> bool:
    """Whether the artifact exists; whatever exists must be whole."""
    key = Recipe(STAGE, 1, seed=7).key
    if store.find(STAGE, key) is None:
        return False
    assert {name: store.fetch(STAGE, key, name).read_bytes() for name in CONTENT} == CONTENT
    return True


def files_of(store: LocalStore) -> list[str]:
    return [path.name for path in store.root.rglob("*") if path.is_file()]


def test_publisher_killed_at_any_step_leaves_nothing_or_everything(tmp_path: Path) -> None:
    states = []
    for store in run_killed_at_every_step("publish", tmp_path):
        states.append(is_complete(store))
        publish(store)  # a retry succeeds whatever was left
        assert is_complete(store)
        store.sweep(older_than_hours=0)
        assert is_complete(store)
        assert len(files_of(store)) == len(CONTENT) + 1
    assert states == sorted(states)  # once there, it stays
    assert set(states) == {False, True}


def test_remover_killed_at_any_step_leaves_nothing_or_everything(tmp_path: Path) -> None:
    states = []
    for store in run_killed_at_every_step("remove", tmp_path):
        states.append(is_complete(store))
        store.remove(STAGE, Recipe(STAGE, 1, seed=7).key)
        store.sweep(older_than_hours=0)
        assert files_of(store) == []
    assert states == sorted(states, reverse=True)
    assert set(states) == {False, True}


def test_document_writer_killed_at_any_step_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    contents = []
    for store in run_killed_at_every_step("document", tmp_path):
        contents.append(store.get_document("report.json"))
        store.sweep(older_than_hours=0)
        assert files_of(store) == ["report.json"]
    assert contents == sorted(contents, reverse=True)
    assert set(contents) == {b"old" * 1000, b"new" * 1000}


def test_nothing_gets_its_final_name_before_it_is_on_the_disk(tmp_path: Path) -> None:
    code = r"""
import os, sys
from pathlib import Path
from magi2.artifacts import LocalStore, ManifestDraft, Recipe
steps = []
fsync, link = os.fsync, os.link
def name(handle):
    return Path(os.readlink(f"/proc/self/fd/{handle}")).name
os.fsync = lambda handle: (steps.append("sync " + name(handle)), fsync(handle))[1]
os.link = lambda one, two: (steps.append(f"link {Path(one).name} {Path(two).name}"), link(one, two))[1]
recipe = Recipe("preview", 1)
store = LocalStore(Path(sys.argv[1]))
with store.stage_folder("preview", recipe.key) as folder:
    (folder / "work").write_bytes(b"abc")
    made = store.publish(ManifestDraft(recipe), {"latents.bin": folder / "work"})
stored = made.payloads["latents.bin"].file
draft = next(step.split()[1] for step in steps if step.endswith(" manifest.json"))
payload = ["sync work", f"link work {stored}", f"sync {made.key}"]
expected = [*payload, f"sync {draft}", f"link {draft} manifest.json", f"sync {made.key}"]
kept = [step for step in steps if step.split()[-1] not in (made.key[:2], "preview", "artifacts", "store")]
assert kept == expected, kept
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True, timeout=30)


def test_eight_processes_publish_one_key_and_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from magi2.artifacts import LocalStore, ManifestDraft, Recipe\n"
        "store, recipe = LocalStore(Path(sys.argv[1])), Recipe('preview', 1, seed=7)\n"
        "with store.stage_folder('preview', recipe.key) as folder:\n"
        "    (folder / 'x').write_bytes(sys.argv[2].encode() * 1000)\n"
        "    sys.stdin.readline()\n"
        "    made = store.publish(ManifestDraft(recipe, host=sys.argv[2]), {'latents.bin': folder / 'x'})\n"
        "sys.stdout.buffer.write(made.to_bytes())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen([*command, str(number)], stdin=pipe, stdout=pipe) for number in range(8)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 8
    assert len(outputs) == 1
    made = Manifest.from_bytes(outputs.pop())
    store = LocalStore(tmp_path)
    assert store.find(STAGE, made.key) == made
    assert store.fetch(STAGE, made.key, "latents.bin").read_bytes() == made.host.encode() * 1000
    assert len(files_of(store)) == 2


def test_live_attempt_is_not_swept_and_a_dead_one_is_once_old(tmp_path: Path) -> None:
    now = [0.0]
    store = LocalStore(tmp_path, clock=lambda: now[0])
    dead = tmp_path / "scratch" / "preview-0-a0123456789abcdef"
    dead.mkdir(parents=True)
    (dead / "latents.bin").write_bytes(b"abc")
    now[0] = (dead / "latents.bin").stat().st_ctime + 3600
    assert store.sweep(older_than_hours=2) == []
    assert store.sweep(older_than_hours=0.5) == ["scratch/preview-0-a0123456789abcdef"]
    assert not dead.exists()


def test_one_sweep_takes_a_dead_attempts_work_and_what_it_linked(tmp_path: Path) -> None:
    work = tmp_path / "scratch" / "preview-0-a0123456789abcdef" / "latents.bin"
    linked = tmp_path / "artifacts" / STAGE / "ab" / ("ab" * 32) / "latents.a0123456789abcdef.bin"
    for path in (work, linked):
        path.parent.mkdir(parents=True)
    work.write_bytes(b"abc")
    linked.hardlink_to(work)
    now = work.stat().st_ctime
    time.sleep(0.05)  # taking away one name changes the other's time
    assert len(LocalStore(tmp_path, clock=lambda: now).sweep(older_than_hours=0)) == 2
    assert files_of(LocalStore(tmp_path)) == []


def test_corrupted_artifact_is_left_for_people_by_a_sweep(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    made = publish(store)
    manifest = next(tmp_path.rglob("manifest.json"))
    manifest.write_bytes(b"garbage")
    store.sweep(older_than_hours=0)
    assert len(files_of(store)) == len(CONTENT) + 1
    with pytest.raises(CorruptedArtifactError):
        store.find(STAGE, made.key)
