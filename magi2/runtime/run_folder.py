"""The folder of this user, on this host, where locks and the files of running jobs lie."""

from __future__ import annotations

import os
from pathlib import Path

from magi2.files import private_folder


def run_folder(folder: Path | None = None) -> Path:
    """`folder`, by default `/tmp/magi2-<uid>`, made if need be and closed to others.

    The default asks no environment variable: two processes that saw different values of `XDG_RUNTIME_DIR` or `TMPDIR`
    (a service and a shell, say) would lock different files and share the accelerators.
    Raises: ConfigError when it is a link, no folder or another user's; InfrastructureError when it cannot be made.
    """
    path = (folder or Path(f"/tmp/magi2-{os.getuid()}")).absolute()
    return private_folder(path, "locks in it prove nothing")
