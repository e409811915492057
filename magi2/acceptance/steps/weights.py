"""Whether the given weights are those that the profiles' networks want: names, shapes and dtypes, from headers."""

from __future__ import annotations

from collections.abc import Iterator

from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site
from magi2.checkpoints.verify import verify


def run(site: Site) -> Iterator[Found]:
    """A line for each component; fingerprints, which read every byte, where they are asked for."""
    if site.settings.ckpt_root is None:
        raise NotRunError("no weights are given: MAGI2_CKPT_ROOT is not set")
    root = site.settings.checkpoint_root()
    for report in verify(root, site.profiles[0].architectures, fingerprint=site.options.fingerprint):
        if report.problem:
            yield Difference(f"{report.component}: {report.problem}")
            continue
        yield Figure(f"{report.component}.tensors", report.tensors)
        yield Figure(f"{report.component}.size", round(report.size_bytes / 1e9, 3), "GB")
        if report.skipped:
            yield Figure(f"{report.component}.unread tensors", len(report.skipped))
        if report.fingerprint:
            yield Figure(f"{report.component}.fingerprint", report.fingerprint)
