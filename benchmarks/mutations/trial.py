"""One mutation after the other on one store, each undone before the next."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.mutations.changes import BYTES, JSON
from benchmarks.mutations.readers import read
from benchmarks.mutations.subjects import Sample
from magi2.artifacts.seal import SEAL, seal_json
from magi2.catalog.engine import Database
from magi2.catalog.migrate import migrate
from magi2.catalog.rebuild import rebuild
from magi2.catalog.repository import Catalog
from magi2.catalog.verify import verify
from magi2.errors import InfrastructureError, Magi2Error

EXCHANGED = "exchanged with another"
VERIFY_EVERY = 10
"""`magi2 verify` reads the whole store: of so many mutations of what it looks at, it is asked at one."""
_VERIFIED = ("manifest", "payload", "document")


class Trial:
    """Counts what readers notice; the same seed gives the same mutations."""

    def __init__(self, sample: Sample, seed: int) -> None:
        self._sample, self._random = sample, Random(seed)
        url = f"sqlite:///{sample.store.root.parent / 'catalog.sqlite'}"
        migrate(url)
        self._catalog = Catalog(Database(url))
        rebuild(sample.store, self._catalog)
        root = sample.store.root
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        self._names = [name for path in paths if kind_of(name := path.relative_to(root).as_posix())]
        for name in self._names:
            self._path(name).chmod(0o644)
            read(sample, name)
        assert not self._problems(), "all is well before the first mutation"
        self.accepted: list[str] = []
        self._tried: Counter[tuple[str, str]] = Counter()
        self._noticed_by_verify = self._asked_verify = 0
        self._reasons: Counter[str] = Counter()

    def mutate(self) -> None:
        """Damage a file of a kind that is chosen first, so that all kinds have their share; ask; mend it."""
        kind = self._random.choice(KINDS)
        name = self._random.choice([name for name in self._names if kind_of(name) == kind])
        how = self._random.choice([*BYTES, *(JSON if name.endswith(".json") else ()), EXCHANGED])
        if changed := self._changed(name, how):
            self._try(kind, how, name, changed)
        else:
            self.mutate()

    def forge(self, count: int) -> dict[str, int]:
        """Values changed in documents by somebody who writes the digest again: how many are taken for true."""
        accepted = 0
        names = [name for name in self._names if kind_of(name) == "document"]
        for _ in range(count):
            name = self._random.choice(names)
            content = json.loads(self._path(name).read_bytes())
            del content[SEAL]
            content["forged"] = self._random.random()
            data = seal_json(json.dumps(content, indent=1).encode(), name.removeprefix("documents/"))
            accepted += self._ask(name, {name: data}) is None
        return {"tried": count, "accepted": accepted}

    def counts(self) -> dict[str, Any]:
        """By kind of file and by kind of damage."""
        by_kind, by_damage = Counter[str](), Counter[str]()
        for (kind, how), number in self._tried.items():
            by_kind[kind] += number
            by_damage[how] += number
        return {
            "tried": self._tried.total(),
            "accepted": len(self.accepted),
            "by_file": dict(sorted(by_kind.items())),
            "by_damage": dict(sorted(by_damage.items())),
            "refused_as": dict(sorted(self._reasons.items())),
            "verify": {"asked": self._asked_verify, "noticed": self._noticed_by_verify},
        }

    def _changed(self, name: str, how: str) -> dict[str, bytes]:
        """The files that a mutation writes; none when the change changes nothing."""
        data = self._path(name).read_bytes()
        if how == EXCHANGED:
            other = self._random.choice([other for other in self._names if kind_of(other) == kind_of(name)])
            found = self._path(other).read_bytes()
            return {} if found == data else {name: found, other: data}
        changed = {**BYTES, **JSON}[how](data, self._random)
        return {} if changed == data else {name: changed}

    def _try(self, kind: str, how: str, name: str, changed: dict[str, bytes]) -> None:
        self._tried[kind, how] += 1
        with_verify = kind in _VERIFIED and self._tried.total() % VERIFY_EVERY == 0
        error = self._ask(name, changed, with_verify=with_verify)
        if error is None:
            self.accepted.append(f"{how}: {name}")
        else:
            self._reasons[error.code] += 1

    def _ask(self, name: str, changed: dict[str, bytes], *, with_verify: bool = False) -> Magi2Error | None:
        """The error of whoever reads the file, None when it is read as if nothing had happened."""
        before = {each: self._path(each).read_bytes() for each in changed}
        for each, data in changed.items():
            self._path(each).write_bytes(data)
        try:
            if with_verify:
                noticed = self._problems()
                self._asked_verify, self._noticed_by_verify = self._asked_verify + 1, self._noticed_by_verify + noticed
                if not noticed:
                    self.accepted.append(f"by magi2 verify: {name}")
            read(self._sample, name)
        except InfrastructureError:
            raise
        except Magi2Error as error:
            return error
        finally:
            for each, data in before.items():
                self._path(each).parent.mkdir(parents=True, exist_ok=True)  # a reader may have moved it to quarantine
                self._path(each).write_bytes(data)
        return None

    def _problems(self) -> bool:
        return any(True for _ in verify(self._sample.store, self._catalog, digests=True))

    def _path(self, name: str) -> Path:
        return self._sample.store.root / name


KINDS = ("manifest", "payload", "document", "image", "snapshot", "note")


def kind_of(name: str) -> str | None:
    """What a file of the store is; None for one that no program reads."""
    if name.startswith("artifacts/"):
        return "manifest" if name.endswith("/manifest.json") else "payload"
    if name.endswith("/report.md"):
        return None
    folders = {"batches": "document", "images": "image", "snapshots": "snapshot", "removed": "note"}
    return folders.get(name.split("/")[1])
