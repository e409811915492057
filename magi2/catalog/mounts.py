"""Which file system a file lies on, as far as the kernel tells: SQLite needs one that this host has for itself."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_SHARED = re.compile(
    r"nfs4?|cifs|smb.*|fuse\..*|9p|lustre|gpfs|ceph|afs|beegfs|glusterfs|gfs2|ocfs2|orangefs|pvfs2|wekafs|panfs"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path) -> str | None:
    """The type of the file system of `path` (which need not exist) if other hosts share it, else None.

    None, too, where the kernel does not list its mounts, as on systems other than Linux.
    """
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, found, depth = path.resolve(), "", 0
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split()[4]))
        # Of two mounts on one folder the later one is seen.
        if place.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split()[0], len(point.parts)
    return found if _SHARED.fullmatch(found) else None
