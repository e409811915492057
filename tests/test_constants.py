"""Each constant is written once: where its idea lives."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.import_rules.reading import below, sources

OF_DIFFERENT_THINGS = {
    "CONFIG_NAME": "the file of a network's settings, of two networks",
    "PREFIX": "what a network's weights are stored under, of three networks",
    "TRAFFIC": "what an exchange between ranks is counted as, of two exchanges",
    "VERSION": "of a batch's documents, and of what a worker tells its launcher",
}
"""Names that stand for another value in every module that has one."""


def constants(tree: ast.Module) -> dict[str, str]:
    """The public constants of a module, each with the source of its value."""
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            found |= {name: ast.unparse(statement.value) for name in names if re.fullmatch(r"[A-Z][A-Z0-9_]+", name)}
    return found


def repeated() -> dict[str, dict[str, str]]:
    """Constants that several modules define, with each module's value."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for module, tree in sources().items():
        if below(module, "magi2", "magi2_airflow"):
            for name, value in constants(tree).items():
                found[name][module] = value
    return {name: values for name, values in found.items() if len(values) > 1}


def test_no_two_modules_define_the_same_constant() -> None:
    strays = {name: list(values) for name, values in repeated().items() if name not in OF_DIFFERENT_THINGS}
    assert not strays, f"let one module have it and the others import it: {strays}"


def test_names_that_stand_for_different_things_never_repeat_a_value() -> None:
    found = repeated()
    for name in OF_DIFFERENT_THINGS:
        values = found.get(name, {})
        assert len(values) > 1, f"no longer repeated, take it out of the list: {name}"
        assert len(set(values.values())) == len(values), f"{name} is the same in {list(values)}"


def test_constants_are_found_in_every_form_of_assignment() -> None:
    source = "ONE = 1\nTWO: int = 2\nTHREE, FOUR = 3, 4\n_OWN = 5\nT = TypeVar('T')\nLATER: int\nname = 6\n"
    assert set(constants(ast.parse(source))) == {"ONE", "TWO", "THREE", "FOUR"}
