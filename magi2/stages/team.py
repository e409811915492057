"""The ranks that make clips together: rank 0 leads and alone knows the store, the others do what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from magi2.errors import ConfigError, GroupLostError, Magi2Error, RankGoneError, error_from_code
from magi2.parallel.mesh import Mesh
from magi2.types import Clip

_VERDICT_BYTES = 2048
_MAX_MESSAGE = 300
_COUNTER = "_get_sequence_number_for_group"
CONTROL_TIMEOUT = timedelta(days=1)
"""Whoever hangs is noticed by the launcher, which knows who waits for whom."""


@dataclass(frozen=True)
class Team:
    """All ranks of a run. `control` is a gloo group over them, through the host, and None for one rank alone.

    A rank on which a clip failed gives the others `patience_s` to come to the same point.
    Raises: ConfigError when there are several, and this torch does not count their collectives.
    """

    mesh: Mesh
    control: dist.ProcessGroup | None = None
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        if self.size > 1:  # now, rather than after the first clip
            _counter(dist.ProcessGroup)

    @classmethod
    def alone(cls, device: torch.device) -> Team:
        """A single rank, which needs no process group."""
        return cls(Mesh.single(device))

    @property
    def size(self) -> int:
        return self.mesh.layout.num_ranks

    @property
    def leads(self) -> bool:
        return self.mesh.rank == 0

    def tell(self, order: Any) -> None:
        """Give rank 0's order to all others, whose `hear` returns it. Raises: GroupLostError when one is gone."""
        if self.size > 1:
            self._broadcast([order])

    def hear(self) -> Any:
        """The next order of rank 0. Raises: GroupLostError when it is gone."""
        return self._broadcast([None])[0]

    def _broadcast(self, orders: list[Any]) -> list[Any]:
        try:
            dist.broadcast_object_list(orders, src=0, group=self.control)
        except RuntimeError as error:
            raise GroupLostError(RankGoneError(f"another rank is gone: {error}")) from error
        return orders

    def settle(self, clip: Clip, error: Magi2Error | None) -> None:
        """Agree on how a clip went, once this rank has done its part or failed with `error`; every rank calls it.

        Returns when it went well everywhere. Raises: the error of a rank when it did not but all are ready for the next
        clip, which is so when every rank has issued the same collectives; GroupLostError when they are not.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return
        verdicts = self._exchange(clip, error)
        failed = [(rank, verdict) for rank, verdict in enumerate(verdicts) if verdict["code"]]
        if not failed:
            return
        rank, verdict = failed[0]
        first = error or error_from_code(verdict["code"], f"rank {rank}: {verdict['message']}")
        if not _are_even(verdicts):
            raise GroupLostError(first, clip.clip_id)
        raise first

    def _exchange(self, clip: Clip, error: Magi2Error | None) -> list[dict[str, Any]]:
        verdict = {"code": error and error.code, "message": str(error)[:_MAX_MESSAGE], "issued": self._issued()}
        own = json.dumps(verdict, ensure_ascii=False).encode().ljust(_VERDICT_BYTES)
        words = [torch.empty(_VERDICT_BYTES, dtype=torch.uint8) for _ in range(self.size)]
        work = dist.all_gather(words, torch.tensor(list(own), dtype=torch.uint8), group=self.control, async_op=True)
        try:
            work.wait(CONTROL_TIMEOUT if error is None else timedelta(seconds=self.patience_s))
        except RuntimeError as absent:
            if error is None or "timed out" not in str(absent).lower():
                raise GroupLostError(RankGoneError(f"another rank is gone: {absent}")) from absent
            raise GroupLostError(error, clip.clip_id) from error
        return [json.loads(bytes(word.tolist())) for word in words]

    def _issued(self) -> dict[str, int | None]:
        """How many collectives this rank has issued in each of its groups, by the group's ranks."""
        groups = {group.ranks: group.process_group for group in (self.mesh.world, self.mesh.cp, self.mesh.ep)}
        return {
            ",".join(map(str, ranks)): _count(process_group)
            for ranks, process_group in groups.items()
            if process_group is not None
        }


def _count(process_group: dist.ProcessGroup) -> int | None:
    count = _counter(process_group)
    try:
        return int(count())
    except RuntimeError:  # a backend that does not count proves nothing
        return None


def _counter(owner: object) -> Callable[..., int]:
    """A process group's method, or that of its class, which says how many collectives were issued.

    It is private to torch, which has no public one. Raises: ConfigError when this torch does not have it.
    """
    counter: Callable[..., int] | None = getattr(owner, _COUNTER, None)
    if counter is None:
        message = f"torch {torch.__version__} does not count the collectives of a process group: no {_COUNTER}"
        raise ConfigError(message, hint="install the torch of constraints.txt, or render with a single rank")
    return counter


def _are_even(verdicts: list[dict[str, Any]]) -> bool:
    """Whether the ranks of every group have issued equally many collectives, so that none waits for another's."""
    counts: dict[str, set[int | None]] = {}
    for verdict in verdicts:
        for ranks, count in verdict["issued"].items():
            counts.setdefault(ranks, set()).add(count)
    return all(len(found) == 1 and None not in found for found in counts.values())
