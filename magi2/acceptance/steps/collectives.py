"""What the ranks of the layout exchange: right in every group, also in uneven and empty parts; then how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from magi2.acceptance.measure import timed
from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site
from magi2.parallel.collectives import Group

WIDTH_BYTES = 4096
LARGE_BYTES, SMALL_BYTES = 2**28, 2**22
"""What each rank sends when speed is measured, on accelerators and through a host."""


def run(site: Site) -> Iterator[Found]:
    """For the whole layout and the groups in it that are smaller."""
    mesh = site.ranks
    if mesh.layout.num_ranks == 1:
        raise NotRunError("the layout has one rank: nothing is exchanged")
    yield Figure("backend", site.accelerator.collective_backend)
    for name, group in (("all ranks", mesh.world), ("sequence", mesh.cp), ("experts", mesh.ep)):
        if group.size == 1 or (group is mesh.world and name != "all ranks"):
            continue
        wrong = _wrong(group, site.device)
        everywhere = mesh.world.gather_rows(
            torch.tensor([float(bool(wrong))], device=site.device), [1] * mesh.world.size, name="accept"
        )
        if bool(everywhere.any()):
            ranks = ", ".join(str(rank) for rank, bad in enumerate(everywhere.tolist()) if bad)
            yield Difference(f"{name} ({group.size}): wrong values on ranks {ranks}" + (f": {wrong}" if wrong else ""))
            continue
        yield from _speed(name, group, site)


def _wrong(group: Group, device: torch.device) -> str | None:
    """Which exchange gave other rows than were sent here; None when all are right. Rank p sends r + 1 rows to rank r,
    and none to itself."""
    lengths = [0 if peer == group.rank else peer + 1 for peer in range(group.size)]
    sent = _rows(group.rank, sum(lengths), device)
    own = [0 if peer == group.rank else group.rank + 1 for peer in range(group.size)]
    received = sent.new_full((sum(own), sent.shape[1]), -1)
    group.all_to_all(received, sent, own, lengths, name="accept").wait()
    for peer, rows in enumerate(torch.split(received, own)):
        before = sum(0 if other == peer else other + 1 for other in range(group.rank))
        if not torch.equal(rows, _rows(peer, before + len(rows), device)[before:]):
            return f"all-to-all from rank {peer}"
    counts = [3 * peer for peer in range(group.size)]
    gathered = group.gather_rows(_rows(group.rank, counts[group.rank], device), counts, name="accept")
    wanted = torch.cat([_rows(peer, count, device) for peer, count in enumerate(counts)])
    return None if torch.equal(gathered, wanted) else "gather of rows"


def _rows(rank: int, count: int, device: torch.device) -> Tensor:
    """Rows that no other rank, and no other place, has."""
    return (torch.arange(count, device=device).unsqueeze(1) + 1000 * rank).expand(count, 8).float().contiguous()


def _speed(name: str, group: Group, site: Site) -> Iterator[Found]:
    """Bytes that a rank sends to others in a second, at a size of a step's exchanges."""
    size = SMALL_BYTES if site.device.type == "cpu" else LARGE_BYTES
    rows = size // WIDTH_BYTES // group.size
    sent = torch.zeros(rows * group.size, WIDTH_BYTES, dtype=torch.uint8, device=site.device)
    received, lengths = torch.empty_like(sent), [rows] * group.size

    def exchange() -> None:
        group.all_to_all(received, sent, lengths, lengths, name="accept").wait()

    def gather() -> None:
        group.gather_rows(sent[:rows], lengths, name="accept")

    kinds: tuple[tuple[str, Callable[[], None]], ...] = (("all-to-all", exchange), ("gather", gather))
    for kind, function in kinds:
        milliseconds = timed(function, 5, device=site.device)
        others = rows * (group.size - 1) * WIDTH_BYTES
        yield Figure(f"{name} ({group.size}).{kind}", round(milliseconds, 3), "ms")
        yield Figure(f"{name} ({group.size}).{kind} rate", round(others / milliseconds / 1e6, 2), "GB/s")
