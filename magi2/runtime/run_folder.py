"""The folder of this user, on this host, where locks and the files of running jobs lie."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from magi2.errors import ConfigError, InfrastructureError


def run_folder(folder: Path | None = None) -> Path:
    """`folder`, by default `/tmp/magi2-<uid>`, made if need be and closed to others.

    The default asks no environment variable: two processes that saw different values of `XDG_RUNTIME_DIR` or `TMPDIR`
    (a service and a shell, say) would lock different files and share the accelerators.
    Raises: ConfigError when it is a link, no folder or another user's; InfrastructureError when it cannot be made.
    """
    path = (folder or Path(f"/tmp/magi2-{os.getuid()}")).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.lstat()
    except FileExistsError as error:
        raise ConfigError(f"{path}: is not a folder") from error
    except OSError as error:
        raise InfrastructureError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise ConfigError(f"{path}: is a link or belongs to another user, so locks in it prove nothing")
    if stat.S_IMODE(state.st_mode) & 0o077:
        path.chmod(0o700)
    return path
