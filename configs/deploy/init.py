"""The one-shot job before the services: both databases, pools and connections, the bucket, the first password.

It may run any number of times and changes only what is missing or differs from the files beside it. Settings come from
the environment that docker-compose.yml gives it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from minio import Minio

from magi2.catalog.migrate import migrate

HERE = Path(__file__).resolve().parent
CONNECTION_ID = "magi2_s3"
logger = logging.getLogger("init")


def main() -> None:
    """Do every step; any failure ends the job with an error, so that no service starts on a half-made base."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    airflow("db", "migrate")
    migrate(os.environ["MAGI2_CATALOG"])
    import_pools()
    place = urlsplit(os.environ["MAGI2_STORE"])
    endpoint = parse_qs(place.query)["endpoint"][0]
    import_connection(endpoint)
    make_bucket(place.netloc, endpoint)
    make_passwords()


def airflow(*arguments: str) -> None:
    """Run one `airflow` command. Raises CalledProcessError when it fails."""
    logger.info("airflow %s", " ".join(arguments))
    subprocess.run(["airflow", *arguments], check=True)


def sized_pools() -> dict[str, dict[str, object]]:
    """The pools of pools.json, with slots of POOL_<NAME> where that is set. Raises ValueError naming a wrong one."""
    pools: dict[str, dict[str, object]] = json.loads((HERE / "pools.json").read_text(encoding="utf-8"))
    for name, pool in pools.items():
        variable = f"POOL_{name.upper()}"
        text = os.environ.get(variable, "")
        if text and (not text.isdecimal() or not int(text)):
            raise ValueError(f"{variable}={text!r} is no number of slots, from 1")
        pool["slots"] = int(text) if text else pool["slots"]
    return pools


def import_pools() -> None:
    """Give the pools their sizes, also where somebody changed them by hand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pools.json"
        path.write_text(json.dumps(sized_pools()), encoding="utf-8")
        airflow("pools", "import", str(path))


def import_connection(endpoint: str) -> None:
    """Store the object store's address and keys as an Airflow connection, encrypted by the Fernet key."""
    connection = {
        "conn_type": "aws",
        "login": os.environ["AWS_ACCESS_KEY_ID"],
        "password": os.environ["AWS_SECRET_ACCESS_KEY"],
        "extra": json.dumps({"endpoint_url": endpoint}),
    }
    with tempfile.TemporaryDirectory() as folder:  # a file of this user alone: arguments show in process lists
        path = Path(folder) / "connections.json"
        path.write_text(json.dumps({CONNECTION_ID: connection}), encoding="utf-8")
        airflow("connections", "import", "--overwrite", str(path))


def make_bucket(bucket: str, endpoint: str) -> None:
    """Create the artifact store's bucket where there is none."""
    address = urlsplit(endpoint)
    keys = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    client = Minio(address.netloc, *keys, secure=address.scheme == "https")
    if client.bucket_exists(bucket):
        logger.info("bucket %s is there", bucket)
        return
    client.make_bucket(bucket)
    logger.info("bucket %s made", bucket)


def make_passwords() -> None:
    """Give every user of the simple auth manager a password in its file; Airflow would print new ones to its log."""
    path = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    users = [user.split(":")[0] for user in os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"].split(",")]
    passwords = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [user for user in users if user not in passwords]
    if not missing:
        return
    passwords |= {user: secrets.token_urlsafe(18) for user in missing}
    part = path.with_name(f"{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(passwords), encoding="utf-8")
    part.replace(path)
    logger.info("passwords for %s are in %s", ", ".join(missing), path)


if __name__ == "__main__":
    main()
