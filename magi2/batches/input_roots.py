"""From where a deployment's batches are read: its folders, and its prefixes of buckets with their credentials."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from magi2.artifacts.address import s3_place, store_folder
from magi2.config.input_roots import InputPrefix
from magi2.config.settings import Settings
from magi2.delivery.targets import (
    Connections,
    Secret,
    TargetSettings,
    no_connections,
    require_secret,
    s3_access,
    secrets_of,
)
from magi2.errors import ConfigError
from magi2.inputs.files import InputRoots
from magi2.inputs.objects import Location, ObjectPrefix

if TYPE_CHECKING:
    from magi2.artifacts.s3_input import S3Input

_VARIABLE = "MAGI2_INPUT_ROOTS"


def deployment_roots(
    settings: Settings,
    *,
    connections: Connections = no_connections,
    kept: Path | None = None,
    has_file: bool = True,
) -> InputRoots:
    """Where runs in Airflow read inputs: the inbox and MAGI2_INPUT_ROOTS. `kept` is as `InputRoots` has it.

    Raises: ConfigError when there are none though a batch `has_file`, and for one that is the whole disk, or has to do
    with the store or Airflow's own folder.
    """
    named = [root for root in settings.input_roots if isinstance(root, Path)]
    folders = (*((settings.inbox,) if settings.inbox else ()), *named)
    prefixes = input_prefixes(settings, connections)
    if has_file and not folders and not prefixes:
        raise ConfigError(
            "there is no folder for batch files: neither MAGI2_INBOX nor MAGI2_INPUT_ROOTS is set",
            hint="set one of them to a folder for inputs alone",
        )
    return InputRoots(folders, closed_folders(settings), prefixes, kept).require_apart()


def user_roots(settings: Settings, *folders: Location) -> InputRoots:
    """Where a command reads what its user names: those folders of this host, and the deployment's prefixes."""
    local = tuple(folder for folder in folders if isinstance(folder, Path))
    return InputRoots(local, closed_folders(settings), input_prefixes(settings))


def input_prefixes(settings: Settings, connections: Connections = no_connections) -> tuple[ObjectPrefix, ...]:
    """The prefixes of MAGI2_INPUT_ROOTS, each opened when first read from: before, no server or connection is asked.

    Raises: ConfigError for credentials that are not there by name, and for a prefix that shares objects with the store.
    """
    prefixes = [root for root in settings.input_roots if isinstance(root, InputPrefix)]
    secrets = secrets_of(settings) if prefixes else {}
    return tuple(_prefix(each, settings, secrets, connections) for each in prefixes)


def closed_folders(settings: Settings) -> dict[str, Path]:
    """Folders from which no input is read, by what they are."""
    store = store_folder(settings.store)
    return {"AIRFLOW_HOME": settings.airflow_home, **({"the store": store} if store else {})}


def _prefix(
    root: InputPrefix, settings: Settings, secrets: dict[str, Secret], connections: Connections
) -> ObjectPrefix:
    target = TargetSettings(url=root.url, secret=root.secret, connection=root.connection)
    place = f"{_VARIABLE}: {root}"
    require_secret(place, target, secrets)
    _check_apart(place, root, settings)

    @cache
    def opened() -> S3Input:
        from magi2.artifacts.s3_input import S3Input

        return S3Input(*s3_access(target, secrets, connections))

    bucket, _, prefix = str(root).removeprefix("s3://").partition("/")
    return ObjectPrefix(bucket, prefix, lambda key, limit: opened().read(key, limit))


def _check_apart(place: str, root: InputPrefix, settings: Settings) -> None:
    """Raises ConfigError for a prefix whose objects may be the store's."""
    if store_folder(settings.store) is not None:
        return
    mine, store = s3_place(root.url), s3_place(settings.store)
    says_server = "endpoint=" in root.url or not (root.secret or root.connection)  # else the credentials may
    if mine.bucket != store.bucket or (says_server and mine.endpoint != store.endpoint):
        return
    ours, its = (f"{each.prefix.strip('/')}/".removeprefix("/") for each in (mine, store))
    if ours.startswith(its) or its.startswith(ours):
        raise ConfigError(f"{place}: the store is there too", hint="give a prefix for inputs alone, beside it")
