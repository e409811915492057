"""What somebody who may start a run, or drop a file into the inbox, can make the plan task read: nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from magi2.batches.documents import batch_name, load_batch, shard_name, write_document
from magi2.batches.inbox import Inbox
from magi2.batches.input_roots import deployment_roots
from magi2.batches.plan import load_shard
from magi2.batches.schema import ClipDocument, ShardDocument
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InputError, Magi2Error
from magi2_airflow.plan import PlanOperator
from tests.operators.operator_helpers import Deployment, Task

SECRET = "hunter2-of-the-worker"
KITE = {"prompt": "a kite", "seed": 1}


@pytest.fixture(autouse=True)
def outside(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder beside the roots with a secret as text, as a batch, as JSON and in the environment."""
    folder = deployment.folder / "outside"
    folder.mkdir()
    monkeypatch.setenv("A_SECRET", SECRET)
    for name in ("secret.txt", "secret.jsonl", "secret.csv", "secret.yaml"):
        (folder / name).write_text(f"{SECRET}: [\n")
    (folder / "secret.json").write_text(json.dumps({SECRET: 1}))
    Image.new("RGB", (160, 90), "teal").save(folder / "boat.png")
    return folder


def plan(task: Task, **arguments: Any) -> list[int]:
    return PlanOperator(task_id="plan", **{"profile": "tiny", **arguments}).work(task.context())


def written(deployment: Deployment) -> Iterator[bytes]:
    for folder in (deployment.folder / "store", deployment.inbox):
        yield from (path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def refusal(deployment: Deployment, task: Task, **arguments: Any) -> str:
    """The error of a plan that reads nothing and leaves nothing."""
    with pytest.raises(Magi2Error) as caught:
        plan(task, **arguments)
    assert not caught.value.retryable and SECRET not in str(caught.value)
    assert not any(SECRET.encode() in content for content in written(deployment))
    assert not list(deployment.store.list_documents("batches"))
    return str(caught.value)


def test_batch_file_is_read_from_the_inbox_and_the_input_roots(deployment: Deployment, task: Task) -> None:
    path = deployment.batch(KITE)
    (deployment.inbox / "night.jsonl").write_text(json.dumps({**KITE, "seed": 2}))
    for place in (path, path.parent / ".." / "batches" / "night.jsonl", deployment.inbox / "night.jsonl"):
        assert plan(task, batch=str(place)) == [0]


@pytest.mark.parametrize(
    "place",
    [
        *("outside/secret.jsonl", "outside/secret.csv", "outside/secret.json", "inbox/../outside/secret.jsonl"),
        *("batches/link.jsonl", "batches/out/secret.csv", "store/documents/a.json", "batches/zero.jsonl"),
        *("batches/environ.csv", "batches/fifo.csv", "batches/folder.json", "batches/absent.json", "batches/n\0.csv"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_batch_file_from_elsewhere_is_refused(
    place: str, form: str, deployment: Deployment, task: Task, outside: Path
) -> None:
    roots = deployment.folder / "batches"
    (roots / "folder.json").mkdir(parents=True)
    (roots / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (roots / "out").symlink_to(outside)
    (roots / "zero.jsonl").symlink_to("/dev/zero")
    (roots / "environ.csv").symlink_to("/proc/self/environ")
    os.mkfifo(roots / "fifo.csv")
    refusal(deployment, task, batch=form.format(deployment.folder / place), on_bad_rows="skip")


@pytest.mark.parametrize("place", ["~/secret.jsonl", "~root/secret.jsonl", "~nobody-of-this-name/a.jsonl", "file://[a"])
def test_home_folders_and_broken_addresses_are_refused(
    place: str, deployment: Deployment, task: Task, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(outside))
    refusal(deployment, task, batch=place)


@pytest.mark.parametrize("images", ["outside", "inbox/../outside", "batches/out", "", "/", "/proc/self", "~", "n\0"])
def test_image_folder_from_elsewhere_is_refused_and_widens_nothing(
    images: str, deployment: Deployment, task: Task, outside: Path
) -> None:
    path = deployment.batch({**KITE, "image": "boat.png"}, {**KITE, "prompt_file": "secret.txt"})
    (path.parent / "out").symlink_to(outside)
    folder = images if images.startswith(("/", "~")) else str(deployment.folder / images)
    refusal(deployment, task, batch=str(path), images=folder, on_bad_rows="skip")


def test_image_folder_lets_rows_out_of_it_as_far_as_the_roots(deployment: Deployment, task: Task) -> None:
    Image.new("RGB", (160, 90), "teal").save(deployment.inbox / "boat.png")
    rows = [{**KITE, "image": "../inbox/boat.png"}, {**KITE, "image": "../outside/boat.png"}]
    path = deployment.batch(*rows)
    assert plan(task, batch=str(path), images=str(deployment.folder / "batches"), on_bad_rows="skip") == [0]
    (refused,) = deployment.document(f"batches/{task.xcom['batch_id']}/batch.json")["refused"]
    assert refused["row"] == 2 and "lies outside the folders for inputs" in refused["reason"]


BAD_NAMES = ["{outside}/secret.yaml", "../../outside/secret", "secret.yaml", "..", "/proc/self/environ", "a\nb", "n\0"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_profile_of_a_form_is_a_name(
    name: str, deployment: Deployment, task: Task, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outside)
    profile = name.format(outside=outside)
    assert "not a name" in refusal(deployment, task, batch=str(deployment.batch(KITE)), profile=profile)


OVERRIDES = [
    "text.negative_prompt={outside}/secret.txt",
    "text.negative_prompt=../outside/secret.txt",
    "text.negative_prompt=profiles/tiny.yaml",
    "text.negative_prompt=/dev/zero",
    "text.negative_prompt=fifo",
    "text.negative_prompt=link.txt",
    "text.negative_prompt=''",
    "text={{negative_prompt: {outside}/secret.txt}}",
    "architectures.preview={outside}/secret",
    "architectures.preview=../../outside/secret",
    "extends={outside}/secret.yaml",
    "preview.steps=[" + "[&a x, " * 15 + "]" * 15 + "]",
    "preview.steps=" + "9" * 4_000,
    "preview.shift=.nan",
    "preview.shift=.inf",
    "name" + ".a" * 1_000 + "=1",
    "description=" + "x" * 10_000,
]


@pytest.fixture
def configs(deployment: Deployment, outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configs folder of the deployment's own, with a link that leads out of it and a FIFO."""
    folder = deployment.folder / "configs"
    shutil.copytree(Settings().configs, folder)
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    os.mkfifo(folder / "fifo")
    monkeypatch.setenv("MAGI2_CONFIGS", str(folder))
    return folder


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:40])
def test_override_of_a_form_reads_nothing_from_elsewhere(
    override: str, deployment: Deployment, task: Task, configs: Path, outside: Path
) -> None:
    assert "\n" not in refusal(
        deployment, task, batch=str(deployment.batch(KITE)), overrides=[override.format(outside=outside)]
    )


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:40])
def test_override_of_a_rerun_reads_nothing_from_elsewhere(
    override: str, deployment: Deployment, task: Task, configs: Path, outside: Path
) -> None:
    plan(task, batch=str(deployment.batch(KITE)))
    with pytest.raises(Magi2Error) as caught:
        plan(Task(run_id="again"), rerun_of=task.xcom["batch_id"], overrides=[override.format(outside=outside)])
    assert SECRET not in str(caught.value) and "\n" not in str(caught.value)
    assert not any(SECRET.encode() in content for content in written(deployment))


def test_another_negative_prompt_is_a_file_of_the_configs(
    deployment: Deployment, task: Task, configs: Path, outside: Path
) -> None:
    (configs / "mine.txt").write_text("no fog")
    assert plan(task, batch=str(deployment.batch(KITE)), overrides=["text.negative_prompt=mine.txt"]) == [0]


def test_too_many_overrides_are_refused(deployment: Deployment, task: Task) -> None:
    assert "101 overrides" in refusal(
        deployment, task, batch=str(deployment.batch(KITE)), overrides=["preview.steps=2"] * 101
    )


def set_roots(monkeypatch: pytest.MonkeyPatch, inbox: str | Path = "", roots: str | Path = "") -> None:
    monkeypatch.setenv("MAGI2_INBOX", str(inbox))
    monkeypatch.setenv("MAGI2_INPUT_ROOTS", str(roots))


@pytest.mark.parametrize(
    "place", ["/", "", "store", "store/documents", "home", "home/logs", "to-home", "/proc", "/dev"]
)
@pytest.mark.parametrize("setting", ["inbox", "roots"])
def test_roots_that_have_to_do_with_store_airflow_or_system_are_refused(
    place: str, setting: str, deployment: Deployment, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployment.folder / "home").mkdir()
    (deployment.folder / "to-home").symlink_to("home")
    monkeypatch.setenv("AIRFLOW_HOME", str(deployment.folder / "home"))
    path = deployment.batch(KITE)
    set_roots(monkeypatch, **{setting: deployment.folder / place})
    assert "inputs are not read from" in refusal(deployment, task, batch=str(path))


def test_one_wrong_root_among_good_ones_is_refused(
    deployment: Deployment, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = deployment.batch(KITE)
    set_roots(monkeypatch, deployment.inbox, os.pathsep.join([str(path.parent), "/"]))
    assert "inputs are not read from /" in refusal(deployment, task, batch=str(path))


def test_without_any_root_nothing_is_read(deployment: Deployment, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    set_roots(monkeypatch)
    assert "MAGI2_INPUT_ROOTS" in refusal(deployment, task, batch=str(deployment.batch(KITE)))


def test_a_store_on_a_server_closes_airflows_folder_all_the_same(tmp_path: Path) -> None:
    settings = Settings(store="s3://bucket/x?endpoint=http://s3:8333", airflow_home=tmp_path, inbox=tmp_path / "inbox")
    with pytest.raises(ConfigError, match="AIRFLOW_HOME is"):
        deployment_roots(settings)


def test_what_is_dropped_into_the_inbox_is_read_by_the_same_rule(deployment: Deployment, outside: Path) -> None:
    inbox = deployment.inbox
    (inbox / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (inbox / "relative.csv").symlink_to("../outside/secret.csv")
    os.mkfifo(inbox / "fifo.jsonl")
    with (inbox / "large.jsonl").open("wb") as stream:
        stream.truncate(10 * 2**30)
    (inbox / "good.jsonl").write_text(json.dumps(KITE))
    looked = Inbox(inbox, roots=deployment_roots(Settings.from_environment()), clock=lambda: time.time() + 3600)
    looked.claim()
    assert [claim.run_id.partition("-")[0] for claim in looked.pending()] == ["good"]
    reasons = {path.name.partition("-")[0]: path.read_text() for path in (inbox / "rejected").glob("*.reason.txt")}
    assert reasons.keys() == {"link", "relative", "large"}
    assert not any(SECRET in reason for reason in reasons.values())
    assert "bytes, at most" in reasons["large"]


@pytest.mark.parametrize("name", ["claimed", "rejected"])
def test_folder_of_the_inbox_that_is_a_link_moves_no_file(name: str, deployment: Deployment, outside: Path) -> None:
    (deployment.inbox / name).symlink_to(outside)
    (deployment.inbox / "empty.jsonl").write_text("")
    before = sorted(outside.iterdir())
    looked = Inbox(deployment.inbox, clock=lambda: time.time() + 3600)
    with pytest.raises(ConfigError, match=f"{name} is a link"):
        looked.claim()
        list(looked.pending())
    assert sorted(outside.iterdir()) == before


def test_path_that_an_earlier_batch_got_in_is_not_read_again(deployment: Deployment, task: Task, outside: Path) -> None:
    """A plan of an older version may name a path; neither its stages nor a rerun read it."""
    plan(task, batch=str(deployment.batch(KITE)))
    batch_id = task.xcom["batch_id"]
    store, shard = deployment.store, load_shard(deployment.store, batch_id, 0, None)
    text = shard.profile.text.model_copy(update={"negative_prompt": str(outside / "secret.txt")})
    profile = shard.profile.model_copy(update={"text": text})
    clips = tuple(ClipDocument.of(replace(clip, profile_digest=profile.digest())) for clip in shard.clips)
    batch = load_batch(store, batch_id).model_copy(update={"profiles": {profile.digest(): profile.model_dump()}})
    write_document(store, batch_name(batch_id), batch)
    named = ShardDocument(batch_id=batch_id, shard=0, profile_digest=profile.digest(), clips=clips)
    write_document(store, shard_name(batch_id, 0), named)
    with pytest.raises(InputError, match="is not a name"):
        load_shard(deployment.store, batch_id, 0, None)
    with pytest.raises(InputError, match="is not a name"):
        plan(Task(run_id="again"), rerun_of=batch_id)


def test_user_of_this_machine_names_profile_and_negative_prompt_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {Settings().configs / 'profiles' / 'tiny.yaml'}\n")
    overrides = [f"text.negative_prompt={tmp_path / 'mine.txt'}"]
    assert load_profile(str(tmp_path / "mine.yaml"), Settings().configs, overrides).name == "mine"
