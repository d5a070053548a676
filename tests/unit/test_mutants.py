"""Every mutation of `make mutants` still fits the code, and its test is one of its package's."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.mutant import ROOT, Mutant, list_names, read_list

MUTANTS = [mutant for name in list_names() for mutant in read_list(name)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutation_changes_the_code_and_names_a_test_of_its_package(mutant: Mutant) -> None:
    source = mutant.source()
    ast.parse(source)
    assert source != (ROOT / mutant.file).read_text("utf-8")
    package = mutant.file.split("/")[1].removesuffix(".py")
    file, _, test = mutant.test.partition("::")
    assert file.split("/")[2].removesuffix(".py") in (package, f"test_{package}"), mutant.test
    tree = ast.parse((ROOT / file).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    assert test.partition("[")[0] in names


def test_no_mutation_is_there_twice() -> None:
    found = [(mutant.file, mutant.source()) for mutant in MUTANTS]
    assert len(set(found)) == len(found)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 120
