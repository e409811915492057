"""The page's own files: whole, light, asking nobody else, and never turning text into markup."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STATIC = {each.name: each.read_text() for each in files("magi2_airflow").joinpath("renders/static").iterdir()}
MODULES = {name: text for name, text in STATIC.items() if name.endswith(".js")}
MAX_BYTES = 300_000
DANGEROUS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"


def test_every_module_that_is_imported_is_there() -> None:
    imported = {name for text in MODULES.values() for name in re.findall(r'from "\./([a-z_.]+)"', text)}
    assert imported | {"renders.js"} == set(MODULES)


def test_the_bundle_is_light() -> None:
    assert sum(len(text.encode()) for text in STATIC.values()) < MAX_BYTES


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_text_becomes_markup_or_code(name: str) -> None:
    assert not re.search(DANGEROUS, MODULES[name])


@pytest.mark.parametrize("name", sorted(STATIC))
def test_no_other_host_is_named(name: str) -> None:
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", STATIC[name])) <= {"http://www.w3.org"}
