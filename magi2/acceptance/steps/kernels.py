"""Every kernel at the published shapes against plain torch on this card, in many runs with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from magi2.acceptance.measure import release
from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site


def run(site: Site) -> Iterator[Found]:
    """The distance of each from plain torch, and what is too far or does not repeat."""
    if not site.accelerator.triton:
        raise NotRunError("there is no accelerator: plain torch computes")
    # Here: a CPU machine need not have Triton.
    from magi2.acceptance.preview_checks import checks
    from magi2.acceptance.refiner_checks import refiner_checks

    count = 0
    for check in chain(checks(site.device), refiner_checks(site.device)):
        count += 1
        yield Figure(check.name, check.error, "from plain torch")
        if not check.repeats:
            yield Difference(f"{check.name}: it gave other bits when run again")
        elif not check.passed:
            yield Difference(f"{check.name}: {check.error:.1e} from plain torch, worst row {check.worst_row:.1e}")
    yield Figure("checked", count)
    release()
