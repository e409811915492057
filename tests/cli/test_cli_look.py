"""Commands that only look: profiles, doctor, checkpoints, plan and version."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import urllib3
import yaml

from magi2 import platform
from magi2.artifacts import s3
from magi2.artifacts.local import LocalStore
from magi2.catalog import mounts, open_catalog
from magi2.catalog.identity import require_match
from magi2.cli import doctor
from magi2.config.load import load_profile, profile_names
from magi2.config.settings import Settings
from tests.cli.cli_said import Magi2, Said
from tests.render_helpers import CONFIGS, SMALL, stored_files, truncate

# -- profiles ----------------------------------------------------------------------------------------------------------


def test_profile_list_names_each_with_what_it_is_for(magi2: Magi2) -> None:
    said = magi2("profile", "list")
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert said.code == 0 and sorted(lines) == profile_names(CONFIGS)
    assert all(lines.values())


def test_profile_show_resolves_every_value(magi2: Magi2) -> None:
    content = json.loads(magi2("profile", "show", "1080p", "--set", "refiner.steps=8", "--json").out)
    assert content["refiner"]["steps"] == 8 and content["preview"]["steps"] == 100
    assert content["architectures"]["preview"]["num_layers"] == 40
    assert content["digest"] == load_profile("1080p", CONFIGS, ["refiner.steps=8"]).digest()
    assert yaml.safe_load(magi2("profile", "show", "1080p", "--set", "refiner.steps=8").out) == content


# -- doctor ------------------------------------------------------------------------------------------------------------


def findings_of(said: Said) -> dict[str, tuple[bool | None, str]]:
    content = json.loads(said.out)
    assert content["healthy"] == (said.code == 0)
    return {finding["what"]: (finding["works"], finding["says"]) for finding in content["findings"]}


@pytest.mark.slow
def test_a_healthy_machine_has_nothing_bad(magi2: Magi2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", "cpu:0")
    said = magi2("doctor", "--profile", "tiny")
    assert said.code == 0 and "BAD" not in said.out and said.err == ""
    assert len(said.out.splitlines()) == 12
    findings = findings_of(magi2("doctor", "--profile", "tiny", "--json"))
    assert list(findings) == [
        *("profile", "negative prompt", "accelerator", "torchada", "ffmpeg", "marks", "signatures", "libraries"),
        *("kernels", "store", "weights", "endpoint"),
    ]
    assert findings["weights"][0] is True and "6 components" in findings["weights"][1]
    assert findings["store"][1].count("GiB free") == 1
    assert findings["marks"][0] is None and "empty ContentProducer" in findings["marks"][1]


@pytest.mark.slow
def test_targets_are_looked_at_where_there_are_any(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studio").mkdir()
    targets = {"studio": str(tmp_path / "studio"), "cdn": {"url": "s3://cdn/", "connection": "aws"}}
    monkeypatch.setenv("MAGI2_DELIVERY_TARGETS", json.dumps(targets))
    works, says = findings_of(magi2("doctor", "--profile", "tiny", "--json"))["targets"]
    assert works and "can be written to" in says and "cdn: is for Airflow to open" in says
    (tmp_path / "studio").rmdir()
    assert findings_of(magi2("doctor", "--profile", "tiny", "--json"))["targets"][0] is False


@pytest.mark.slow
def test_profile_that_nobody_names_is_one_that_the_weights_fit(magi2: Magi2) -> None:
    findings = findings_of(magi2("doctor", "--json"))
    assert findings["profile"][1].startswith("tiny")
    assert findings["weights"][1].endswith("for tiny, tiny-portrait, tiny-preview")
    asked = findings_of(magi2("doctor", "--profile", "1080p", "--json"))
    assert asked["weights"][0] is False and "take --profile tiny" in asked["weights"][1]


@pytest.mark.slow
def test_what_is_wrong_comes_with_what_to_do(magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGI2_CKPT_ROOT", "")
    monkeypatch.setenv("MAGI2_FFMPEG", "/bin/false")
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "file" / "store"))
    monkeypatch.setenv("MAGI2_DEVICE", "musa")
    said = magi2("doctor", "--profile", "tinny")
    assert said.code == 1
    bad = {line.split(maxsplit=2)[1]: line for line in said.out.splitlines() if line.startswith("BAD ")}
    assert set(bad) == {"profile", "negative", "accelerator", "torchada", "ffmpeg", "kernels", "store", "weights"}
    assert "did you mean 'tiny'?" in bad["profile"]
    assert "set MAGI2_FFMPEG" in bad["ffmpeg"]
    assert "make-tiny" in bad["weights"]
    assert "set it to cpu" in bad["accelerator"]
    assert "Traceback" not in said.err


def test_a_card_that_takes_no_fp8_is_told_for_a_profile_that_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "small.yaml"
    profile.write_text(yaml.safe_dump({"extends": str(CONFIGS / "profiles/tiny.yaml"), "compute": {"weights": "fp8"}}))
    monkeypatch.setattr(platform, "fp8_refusal", lambda *, accelerator: "this card takes no FP8")
    settings = Settings(device="cpu")
    assert doctor._kernels(settings, str(profile)) == doctor.Finding("kernels", False, "this card takes no FP8")
    assert doctor._kernels(settings, "tiny").works is True


@pytest.mark.slow
def test_an_unfit_ffmpeg_of_the_system_is_passed_over_in_one_line(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "bin" / "ffmpeg"
    system.parent.mkdir()
    system.write_text("#!/bin/sh\nexit 1\n")
    system.chmod(0o755)
    monkeypatch.setenv("PATH", f"{system.parent}:{os.environ['PATH']}")
    works, says = findings_of(magi2("doctor", "--profile", "tiny", "--json"))["ffmpeg"]
    assert works is True and f"passed over: {system} -version exits with 1" in says
    said = magi2("stage", "enhance", "-p", "x", "--profile", "tiny-preview")
    assert [str(system) in line for line in said.error_lines if "warning" in line] == [True]


@pytest.mark.slow
def test_foreign_store_is_named_and_the_other_lines_come(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "theirs"):
        store, catalog = LocalStore(tmp_path / name), open_catalog(f"sqlite:///{tmp_path / name}.sqlite")
        require_match(store, catalog)
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "mine"))
    monkeypatch.setenv("MAGI2_CATALOG", f"sqlite:///{tmp_path / 'mine.sqlite'}")
    assert findings_of(magi2("doctor", "--profile", "tiny", "--json"))["store"][0] is not False
    monkeypatch.setenv("MAGI2_CATALOG", f"sqlite:///{tmp_path / 'theirs.sqlite'}")
    findings = findings_of(magi2("doctor", "--profile", "tiny", "--json"))
    assert findings["store"][0] is False and "belongs to another catalog" in findings["store"][1]
    assert findings["weights"][0] is True and "endpoint" in findings


@pytest.mark.slow
def test_catalog_on_a_network_file_system_is_warned_of(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mountinfo")
    mounts.MOUNTS.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 filer:/clips rw\n")
    works, says = findings_of(magi2("doctor", "--profile", "tiny", "--json"))["store"]
    assert works is None and "nfs4" in says and "MAGI2_CATALOG=postgresql://" in says
    monkeypatch.setenv("MAGI2_CATALOG", "postgresql+psycopg2://nobody@127.0.0.1:1/none")
    assert "nfs4" not in findings_of(magi2("doctor", "--profile", "tiny", "--json"))["store"][1]


@pytest.mark.slow
def test_silent_store_is_named_and_the_other_lines_come(magi2: Magi2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_TIMEOUT", urllib3.Timeout(connect=1, read=0.2))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MAGI2_STORE", f"s3://clips/night?endpoint={endpoint}&region=us-east-1")
        findings = findings_of(magi2("doctor", "--profile", "tiny", "--json"))
    assert findings["store"][0] is False and endpoint in findings["store"][1]
    assert findings["weights"][0] is True and "endpoint" in findings


@pytest.mark.slow
def test_damaged_weights_are_named(
    magi2: Magi2, tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    truncate(weights / "refiner" / "model-00001-of-00003.safetensors")
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(weights))
    works, says = findings_of(magi2("doctor", "--profile", "tiny", "--json"))["weights"]
    assert works is False and "refiner/model-00001-of-00003.safetensors: unreadable or truncated" in says


@pytest.mark.slow
def test_an_endpoint_is_shown_without_its_key(magi2: Magi2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_PE_BASE_URL", "http://localhost:1/v1")
    monkeypatch.setenv("MAGI2_PE_API_KEY", "very-secret")
    said = magi2("doctor", "--profile", "tiny")
    assert "http://localhost:1/v1" in said.out and "very-secret" not in said.out + said.err


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_make_tiny_and_verify(magi2: Magi2, tmp_path: Path, tiny_checkpoint: Path) -> None:
    made = magi2("checkpoint", "make-tiny", "[bold]weights", "--seed", "1")
    assert made.code == 0 and made.out.startswith("[bold]weights: text_encoder, preview, refiner")
    here, there = stored_files(tmp_path / "[bold]weights"), stored_files(tiny_checkpoint)
    assert here == {name: there[name] for name in here}
    said = magi2("checkpoint", "verify", "[bold]weights", "--profile", "tiny")
    assert said.code == 0 and [line.split()[1] for line in said.out.splitlines() if line[0] != " "] == ["ok"] * 6
    assert "tensors that nothing reads: lm_head.weight" in said.out
    again = magi2("checkpoint", "make-tiny", "[bold]weights", "--seed", "2")
    assert again.code == 2 and "no tiny checkpoint of seed 2" in again.err


def test_verify_says_what_is_bad_and_fails(
    magi2: Magi2, tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    (weights / "turbo_vae" / "checkpoint.ckpt").unlink()
    said = magi2("checkpoint", "verify", weights, "--profile", "tiny", "--no-fingerprint")
    (bad,) = [line for line in said.out.splitlines() if " BAD " in line]
    assert said.code == 1 and bad.startswith("turbo_vae") and "checkpoint.ckpt is missing" in bad
    content = json.loads(magi2("checkpoint", "verify", weights, "--profile", "tiny", "--json").out)
    assert content["complete"] is False
    assert {row["component"]: row["problem"] is None for row in content["components"]}["preview"] is True
    other = magi2("checkpoint", "verify", tiny_checkpoint, "--no-fingerprint")
    assert other.code == 1 and "is the architecture in the profile the one of these weights?" in other.out


# -- plan and version --------------------------------------------------------------------------------------------------


def test_plan_is_a_dry_run(magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batch.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": ""}\n{"prompt": "a "}\n')
    overrides = [argument for override in SMALL for argument in ("--set", override)]
    arguments = ["plan", "batch.jsonl", "--profile", "tiny-preview", *overrides]
    refused = magi2(*arguments)
    assert refused.code == 2 and "line 3: the prompt is empty" in refused.err
    said = magi2(*arguments, "--on-bad-rows", "skip", "--json")
    content = json.loads(said.out)
    assert (content["clips"], content["cached"], content["missing"]["mux"]) == (2, 0, 2)
    assert content["refused"] == ["line 3: the prompt is empty"]
    assert content["repeats"] == 1
    assert content["content_producer"] == ""
    assert "an empty ContentProducer (set MAGI2_CONTENT_PRODUCER)" in magi2(*arguments, "--on-bad-rows", "skip").out
    monkeypatch.setenv("MAGI2_LABEL_FONT", str(tmp_path / "absent.ttf"))
    unlabelled = magi2(*arguments, "--on-bad-rows", "skip", "--set", "delivery.label=cn")
    assert unlabelled.code == 2 and "absent.ttf" in unlabelled.err and "fonts-noto-cjk" in unlabelled.err
    assert not (tmp_path / "store").exists()


def test_version_and_help(magi2: Magi2) -> None:
    assert magi2("--version").out.startswith("magi2 0.")
    shown = magi2("--help")
    assert shown.code == 0 and all(f" {name} " in shown.out for name in ("render", "stage", "plan", "doctor"))
