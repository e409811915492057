"""Whether the given weights are those that the profiles' networks want: names, shapes and dtypes, from headers."""

from __future__ import annotations

from collections.abc import Iterator

from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site
from magi2.checkpoints.verify import ComponentReport, verify
from magi2.config.load import load_profile

PUBLISHED = "1080p"
"""The profile whose networks have a table of dtypes."""


def run(site: Site) -> Iterator[Found]:
    """A line for each component; fingerprints, which read every byte, where they are asked for."""
    if site.settings.ckpt_root is None:
        raise NotRunError("no weights are given: MAGI2_CKPT_ROOT is not set")
    root, architectures = site.settings.checkpoint_root(), site.profiles[0].architectures
    is_published = architectures == load_profile(PUBLISHED, site.settings.configs).architectures
    for report in verify(root, architectures, fingerprint=site.options.fingerprint):
        if report.problem:
            yield Difference(f"{report.component}: {report.problem}")
            continue
        yield from _figures(report)
        if is_published and report.cast:
            others = f"{len(report.cast)} tensors are of another dtype than published"
            yield Difference(f"{report.component}: {others}, which loading casts: first {report.cast[0]}")


def _figures(report: ComponentReport) -> Iterator[Found]:
    yield Figure(f"{report.component}.tensors", report.tensors)
    yield Figure(f"{report.component}.size", round(report.size_bytes / 1e9, 3), "GB")
    if report.hollow:
        yield Figure(f"{report.component}.hollow", "names and sizes alone: nothing can be rendered from it")
    if report.skipped:
        yield Figure(f"{report.component}.unread tensors", len(report.skipped))
    if report.fingerprint:
        yield Figure(f"{report.component}.fingerprint", report.fingerprint)
