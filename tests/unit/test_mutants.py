"""Every mutation of `make mutants` still fits the code, and its test is one of its package's."""

from __future__ import annotations

import ast
import functools

import pytest

from tests.mutants.mutant import ROOT, list_names, read_list

LISTS = {name: read_list(name) for name in list_names()}
MUTANTS = [mutant for mutants in LISTS.values() for mutant in mutants]


@functools.cache
def names_of_tests(file: str) -> set[str]:
    """The names of the tests in a file, whose path is relative to the checkout."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", LISTS)
def test_a_mutation_changes_the_code_and_names_a_test_of_its_package(name: str) -> None:
    for mutant in LISTS[name]:
        source = mutant.source()
        ast.parse(source)
        assert source != (ROOT / mutant.file).read_text("utf-8"), mutant.name
        package = mutant.file.split("/")[1].removesuffix(".py")
        file, _, test = mutant.test.partition("::")
        known = package, f"test_{package}"
        assert file.split("/")[2].removesuffix(".py") in known, (mutant.name, mutant.test)
        assert test.partition("[")[0] in names_of_tests(file), (mutant.name, mutant.test)


def test_no_mutation_is_there_twice() -> None:
    found = [(mutant.file, mutant.source()) for mutant in MUTANTS]
    assert len(set(found)) == len(found)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 120
