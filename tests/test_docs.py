"""What the documents name is there: files, headings, make targets and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
MAKE = re.compile(r"(?:`make |^make (?=[a-z-]+ *(?:#|$)))([a-z-]+)", re.MULTILINE)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get where it is shown."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_make_target_that_a_page_names_is_in_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(MAKE.findall(page.read_text(encoding="utf-8")))
    assert named <= targets, named - targets


def test_every_page_of_the_docs_is_linked_from_the_readme_or_the_guide() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link
    }
    assert not [page for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked]


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[good](#one-thing) [bad](#another) [gone](gone.md)\n", encoding="utf-8")
    assert list(broken_links(page)) == ["#another", "gone.md"]
