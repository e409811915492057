"""What the launcher is asked to run, and the file by which the worker learns of it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from magi2.errors import InputError, Magi2Error
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.types import ACCELERATOR_STAGES, StageName

Devices: TypeAlias = tuple[int, ...] | Literal["all"]

JOB_FILE = "job.json"
_BATCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@-]{0,127}")


@dataclass(frozen=True)
class LostClip:
    """A clip that a group of processes did not survive, and why: `code` is that of a class in `magi2.errors`."""

    clip_id: str
    code: str
    message: str


@dataclass(frozen=True)
class StageJob:
    """One stage of one shard. Raises InputError for an id or number that is none.

    `store_identity` is what the store is known by, so that a folder which is not mounted is not taken for it.
    `layout` says how many processes work on it and how they share the work. `devices` are the accelerators that nobody
    else may use meanwhile; None means all of the host's for a stage that computes on them and none for the others. A
    job that uses none, as all do where the device is the CPU, shuts out those of the same store, stage and key.
    `lost` are clips that have failed in an earlier group of this job. `is_last_try`: nobody will run this stage of the
    shard again by himself when it fails. `worker_module` is what `python -m` runs.
    """

    batch_id: str
    shard: int
    stage: StageName
    store: str
    attempt: int = 1
    force: bool = False
    is_last_try: bool = True
    layout: ParallelLayout = ONE_RANK
    devices: Devices | None = None
    lost: tuple[LostClip, ...] = ()
    store_identity: str | None = None
    worker_module: str = "magi2.runtime.worker"

    def __post_init__(self) -> None:
        if not isinstance(self.batch_id, str) or not _BATCH_ID.fullmatch(self.batch_id):
            raise InputError(f"batch id {self.batch_id!r:.80}: expected up to 128 letters, digits and _.+=@-")
        for name, least in (("shard", 0), ("attempt", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(f"{name} is {value!r:.80}, must be an integer from {least}")
        if self.stage not in set(StageName):
            raise InputError(f"stage is {self.stage!r:.80}, must be one of {', '.join(StageName)}")

    @property
    def ranks(self) -> int:
        """How many processes work on the job."""
        return self.layout.num_ranks

    @property
    def locked_devices(self) -> Devices:
        """The accelerators to lock; empty when there are none."""
        if self.devices is not None:
            return self.devices
        return "all" if self.stage in ACCELERATOR_STAGES else ()

    @property
    def key(self) -> str:
        """What tells its work from that of other jobs of this stage; the same for every attempt."""
        return f"{self.batch_id}/{self.shard}"

    @property
    def title(self) -> str:
        """What people call this job."""
        return f"batch {self.batch_id} shard {self.shard} stage {self.stage.value}"

    def is_tried_again(self, error: Magi2Error) -> bool:
        """Whether what ended with this error will be tried again, and so has not failed yet."""
        return error.retryable and not self.is_last_try

    def write(self, folder: Path) -> Path:
        """The job file, readable by this user alone."""
        fields = ("batch_id", "shard", "stage", "store", "store_identity", "attempt", "force", "is_last_try")
        values = {name: getattr(self, name) for name in fields}
        values |= {"layout": str(self.layout), "lost": [asdict(clip) for clip in self.lost]}
        path = folder / JOB_FILE
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            json.dump(values, stream)
        return path

    @classmethod
    def read(cls, path: Path) -> StageJob:
        """The job in a file that `write` made. Raises InputError when it is none."""
        try:
            values = json.loads(path.read_bytes())
            values["stage"] = StageName(values["stage"])
            values["layout"] = ParallelLayout.parse(values["layout"])
            values["lost"] = tuple(LostClip(**clip) for clip in values["lost"])
            return cls(**values)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{path}: no job file: {type(error).__name__}: {error}") from error
