"""Targets by name: what the settings may say, and what no error or repr may tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magi2.config.settings import Settings
from magi2.delivery.names import OUT
from magi2.delivery.places import FolderPlace, S3Prefix
from magi2.delivery.targets import Secret, Targets
from magi2.errors import ConfigError, InputError

SECRET = "s3cr3t-of-the-client"
SECRETS = {"client": {"access_key": "id", "secret_key": SECRET}}
ADDRESS = "s3://bucket/clips/?endpoint=http://127.0.0.1:9"


def settings(targets: Any, tmp_path: Path, secrets: Any = SECRETS) -> Settings:
    given = {"MAGI2_DELIVERY_TARGETS": json.dumps(targets), "MAGI2_DELIVERY_SECRETS": json.dumps(secrets)}
    return Settings.from_environment({"MAGI2_STORE": str(tmp_path / "store"), **given})


def test_without_settings_there_are_none(tmp_path: Path) -> None:
    assert Targets.of(Settings(store=str(tmp_path))).names == ()


def test_a_target_is_a_folder_or_a_prefix_of_a_bucket(tmp_path: Path) -> None:
    targets = Targets.of(
        settings({"studio": str(tmp_path / "studio"), "client": {"url": ADDRESS, "secret": "client"}}, tmp_path)
    )
    assert targets.names == ("studio", "client")
    assert isinstance(targets.open("studio"), FolderPlace) and isinstance(targets.open("client"), S3Prefix)
    assert targets.open("client").address("a.mp4") == "s3://bucket/clips/a.mp4"


def test_a_connection_is_asked_for_when_its_target_is_opened(tmp_path: Path) -> None:
    asked: list[str] = []

    def connection(name: str) -> Secret:
        asked.append(name)
        return Secret(access_key="id", secret_key=SECRET, endpoint="http://127.0.0.1:9")

    given = settings({"cdn": {"url": "s3://bucket/", "connection": "aws_cdn"}}, tmp_path)
    targets = Targets.of(given, connections=connection)
    assert not asked
    assert "127.0.0.1:9" in str(vars(targets.open("cdn"))["_place"]) and asked == ["aws_cdn"]
    with pytest.raises(ConfigError, match="known to Airflow alone"):
        Targets.of(given).open("cdn")


def test_a_name_that_is_not_configured_names_the_nearest(tmp_path: Path) -> None:
    targets = Targets.of(settings({"studio": str(tmp_path / "studio")}, tmp_path), out=tmp_path / "out")
    assert targets.require("studio") == "studio" and targets.names == ("studio", OUT)
    with pytest.raises(InputError, match="did you mean 'studio'"):
        targets.require("studios")
    with pytest.raises(InputError, match="not configured"):
        targets.open("/etc")


@pytest.mark.parametrize(
    "targets",
    [
        [],
        "studio",
        {"studio": 3},
        {"studio": "relative/folder"},
        {"studio": "ftp://host/folder"},
        {"studio": "s3://"},
        {"studio": f"s3://id:{SECRET}@bucket/"},
        {"studio": {"url": ADDRESS, "secret_key": SECRET}},
        {"studio": {"url": ADDRESS, "secret": "absent"}},
        {"studio": {"url": ADDRESS, "secret": "client", "connection": "aws"}},
        {"../studio": "/srv/studio"},
        {"--out": "/srv/studio"},
        {"": "/srv/studio"},
    ],
)
def test_settings_that_are_wrong_are_refused_without_a_secret(targets: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Targets.of(settings(targets, tmp_path))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("secrets", [[SECRET], {"client": SECRET}, {"client": {"access_key": 3, "secret_key": SECRET}}])
def test_no_error_and_no_repr_tells_a_secret(secrets: Any, tmp_path: Path) -> None:
    given = settings({}, tmp_path, secrets)
    assert SECRET not in repr(given) and SECRET not in repr(Secret(access_key="id", secret_key=SECRET))
    with pytest.raises(ConfigError, match="MAGI2_DELIVERY_SECRETS") as caught:
        Targets.of(given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", ["store", "store/clips", ".", "inbox"])
def test_no_target_shares_files_with_the_store_or_the_inbox(place: str, tmp_path: Path) -> None:
    given = {
        "MAGI2_STORE": str(tmp_path / "store"),
        "MAGI2_INBOX": str(tmp_path / "inbox"),
        "MAGI2_DELIVERY_TARGETS": json.dumps({"studio": str(tmp_path / place)}),
    }
    with pytest.raises(ConfigError, match="are not apart"):
        Targets.of(Settings.from_environment(given)).open("studio")
