"""A batch that was refused as a whole: it has no clips and no documents, but people look for it among the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magi2.artifacts.recipe import canonical_json, sha256_text
from magi2.batches.batch_file import BadRowsError
from magi2.errors import InputError, reason_of

WHOLE_FILE = 0
"""The number that stands for the file as a whole where rows have one."""


@dataclass(frozen=True)
class RefusedBatch:
    """Why nothing of a batch was started, by row. `origin` is as in `BatchPlan`."""

    name: str
    source: str
    reasons: Mapping[int, str]
    origin: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, error: InputError, *, name: str, source: str, origin: Mapping[str, str | None]) -> RefusedBatch:
        """The batch that an error stood against."""
        if isinstance(error, BadRowsError):
            reasons = {row.number: row.reason for row in error.rows}
        else:
            reasons = {WHOLE_FILE: reason_of(error)}
        return cls(name, source, reasons, origin)

    @property
    def batch_id(self) -> str:
        """16 hexadecimal digits, as of any batch."""
        reasons = [[number, reason] for number, reason in sorted(self.reasons.items())]
        return sha256_text(canonical_json({"source": self.source, "reasons": reasons, "origin": dict(self.origin)}))[
            :16
        ]
