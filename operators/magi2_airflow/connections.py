"""Credentials that Airflow keeps: asked for by the task that needs them, and passed on to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magi2.errors import ConfigError

if TYPE_CHECKING:
    from magi2.delivery.targets import Secret


def target_secret(conn_id: str) -> Secret:
    """The credentials of a delivery target from a connection: login and password, and the extra of an `aws` one.

    Raises: ConfigError, in which no secret stands, when there is no such connection or it has no keys.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    from magi2.delivery.targets import Secret

    try:
        connection = BaseHook.get_connection(conn_id)
        extra = connection.extra_dejson
    except (AirflowException, ValueError) as error:
        raise ConfigError(f"connection {conn_id}: Airflow does not give it: {type(error).__name__}") from None
    if not connection.login or not connection.password:
        raise ConfigError(f"connection {conn_id}: has no login and password", hint="they are the target's two keys")
    return Secret(
        access_key=connection.login,
        secret_key=connection.password,
        session_token=extra.get("aws_session_token"),
        endpoint=extra.get("endpoint_url"),
        region=extra.get("region_name"),
    )
