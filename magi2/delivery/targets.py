"""The targets of a deployment by name: what MAGI2_DELIVERY_TARGETS and MAGI2_DELIVERY_SECRETS say.

Whoever names a target (a profile, a form, a row) learns and decides nothing of where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from magi2.artifacts.address import S3Place, environment_credentials, s3_origin, s3_place, store_folder
from magi2.config.settings import Settings
from magi2.config.strict import nearest
from magi2.delivery.names import OUT
from magi2.delivery.places import FolderPlace, Place, S3Prefix
from magi2.errors import ConfigError, InputError
from magi2.inputs.text import NAME_PATTERN, is_name, load_json, quoted

if TYPE_CHECKING:
    from minio.credentials import Provider

_TARGETS, _SECRETS = "MAGI2_DELIVERY_TARGETS", "MAGI2_DELIVERY_SECRETS"

T = TypeVar("T")


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Secret(_Content):
    """Credentials of an S3 server, which never show in `repr`.

    A connection of Airflow may also say where the server is, for a target whose address does not.
    """

    access_key: str = Field(repr=False)
    secret_key: str = Field(repr=False)
    session_token: str | None = Field(None, repr=False)
    endpoint: str | None = None
    region: str | None = None


class TargetSettings(_Content):
    """A folder, or an address s3://bucket/prefix/?endpoint=http://host:port with the name of its credentials.

    `secret` is an entry of MAGI2_DELIVERY_SECRETS, `connection` one of Airflow; without either the credentials are
    those of the environment, as a store's are.
    """

    url: str
    secret: str | None = None
    connection: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder, None for a target on a server."""
        return None if "://" in self.url else Path(self.url)


Connections: TypeAlias = Callable[[str], Secret]
"""Gives the credentials of a connection of Airflow by its id. Raises ConfigError."""


def no_connections(connection: str) -> Secret:
    """For whoever works outside of Airflow. Raises ConfigError."""
    raise ConfigError(
        f"connection {quoted(connection)} is known to Airflow alone",
        hint=f"deliver in Airflow, or give the target a secret of {_SECRETS}",
    )


class Targets:
    """The deployment's targets, each opened when first asked for: before, no disk or server is looked at.

    `out` is the folder of a command, as `OUT`.
    """

    def __init__(
        self,
        targets: Mapping[str, TargetSettings],
        secrets: Mapping[str, Secret],
        connections: Connections,
        settings: Settings,
    ) -> None:
        self._targets = targets
        self._settings = settings
        self._secrets = secrets
        self._connections = connections
        self._open: dict[str, Place] = {}

    @classmethod
    def of(cls, settings: Settings, *, out: Path | None = None, connections: Connections = no_connections) -> Self:
        """What the settings say. Raises ConfigError, in which no secret stands."""
        targets = _parse(_TARGETS, settings.delivery_targets, _TARGETS_TYPE)
        secrets = secrets_of(settings)
        for name, target in targets.items():
            _check(name, target, secrets)
        if out is not None:
            targets[OUT] = TargetSettings(url=str(out.absolute()))
        return cls(targets, secrets, connections, settings)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self._targets)

    def is_airflows(self, name: str) -> bool:
        """Whether the credentials of a target are a connection of Airflow. Raises InputError for an unknown one."""
        return self._targets[self.require(name)].connection is not None

    def require(self, name: str) -> str:
        """The name itself. Raises InputError for a target that is not configured."""
        if name not in self._targets:
            known = [each for each in self._targets if each != OUT]
            hint = nearest(name, known) if known else f"{_TARGETS} names none"
            raise InputError(f"delivery target {quoted(name)} is not configured", hint=hint)
        return name

    def open(self, name: str) -> Place:
        """The target, ready to be written to; nothing is asked of it yet.

        Raises: InputError for an unknown one; ConfigError for a connection that gives no credentials, or a folder that
        is not apart from the store and MAGI2_INBOX.
        """
        if name not in self._open:
            target = self._targets[self.require(name)]
            _check_apart(name, target, self._settings)
            self._open[name] = self._place(target)
        return self._open[name]

    def _place(self, target: TargetSettings) -> Place:
        if target.folder is not None:
            return FolderPlace(target.folder)
        return S3Prefix(*s3_access(target, self._secrets, self._connections))


def secrets_of(settings: Settings) -> dict[str, Secret]:
    """The credentials that MAGI2_DELIVERY_SECRETS names. Raises ConfigError, in which none stands."""
    return _parse(_SECRETS, settings.delivery_secrets, _SECRETS_TYPE)


def s3_access(
    target: TargetSettings, secrets: Mapping[str, Secret], connections: Connections
) -> tuple[S3Place, Provider]:
    """Where an address of a bucket leads, and who asks there. Raises ConfigError for what gives no credentials."""
    from minio.credentials import StaticProvider

    place = s3_place(target.url)
    if target.connection is not None:
        secret = connections(target.connection)
    elif target.secret is not None:
        secret = secrets[target.secret]
    else:
        return place, environment_credentials()
    if secret.endpoint and "endpoint=" not in target.url:
        place = replace(place, endpoint=s3_origin(target.url, secret.endpoint))
    place = replace(place, region=place.region or secret.region)
    return place, StaticProvider(secret.access_key, secret.secret_key, secret.session_token)


def require_secret(place: str, target: TargetSettings, secrets: Mapping[str, Secret]) -> None:
    """Raises ConfigError beginning with `place` when it names credentials that there are not."""
    if target.secret is not None and target.secret not in secrets:
        raise ConfigError(f"{place}: {_SECRETS} has no {quoted(target.secret)}", hint=_HINTS[_SECRETS])


_TARGETS_TYPE: TypeAdapter[dict[str, TargetSettings]] = TypeAdapter(
    dict[str, Annotated[TargetSettings, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)]]
)
_SECRETS_TYPE: TypeAdapter[dict[str, Secret]] = TypeAdapter(dict[str, Secret])


def _parse(variable: str, text: str | None, kind: TypeAdapter[dict[str, T]]) -> dict[str, T]:
    """A setting's entries by name, none when it is not set. Raises ConfigError that quotes none of its values."""
    if text is None:
        return {}
    try:
        return kind.validate_python(load_json(text))
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise ConfigError(f"{variable}: {quoted(place)}: {first['msg']}", hint=_HINTS[variable]) from None
    except ValueError:
        raise ConfigError(f"{variable}: not a JSON object", hint=_HINTS[variable]) from None


def _check(name: str, target: TargetSettings, secrets: Mapping[str, Secret]) -> None:
    place = f"{_TARGETS}: {quoted(name)}"
    if not is_name(name):
        raise ConfigError(f"{place} is no name of a target", hint=f"names are {NAME_PATTERN}")
    if target.folder is not None:
        if not target.folder.is_absolute():
            raise ConfigError(f"{place}: {quoted(target.url)} is neither an absolute folder nor s3://bucket/prefix/")
    elif not target.url.startswith("s3://"):
        raise ConfigError(f"{place}: an address of no known kind", hint="give a folder or s3://bucket/prefix/")
    else:
        s3_place(target.url)
    if target.secret is not None and target.connection is not None:
        raise ConfigError(f"{place}: has both a secret and a connection", hint="one of them says who writes there")
    require_secret(place, target, secrets)


def _check_apart(name: str, target: TargetSettings, settings: Settings) -> None:
    """Raises ConfigError for a folder that shares files with the store, or whose files would start runs."""
    others = {"the store": store_folder(settings.store), "MAGI2_INBOX": settings.inbox}
    for what, other in others.items():
        if target.folder is None or other is None:
            continue
        mine, its = target.folder.resolve(), other.resolve()
        if mine.is_relative_to(its) or its.is_relative_to(mine):
            raise ConfigError(f"delivery target {quoted(name)}: {target.folder} and {what} are not apart")


_HINTS = {
    _TARGETS: 'as in {"studio": "/mnt/studio", "client": {"url": "s3://bucket/prefix/", "secret": "client"}}',
    _SECRETS: 'as in {"client": {"access_key": "...", "secret_key": "..."}}',
}
