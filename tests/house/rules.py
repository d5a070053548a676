"""All house rules by name. Each gives the offences of a tree, none where the rule holds."""

from __future__ import annotations

from collections.abc import Callable

from tests.house import imports, names, registries, sizes, texts
from tests.house.tree import Tree

Rule = Callable[[Tree], list[str]]

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        imports.files_without_a_floor,
        imports.upward_imports,
        imports.imports_of_nothing,
        imports.circles_of_files,
        imports.circles_of_packages,
        imports.processes_that_import_each_other,
        imports.examples_of_inner_names,
        imports.impurities_of_core,
        imports.http_below_the_frontend,
        imports.torch_outside_of_models,
        imports.pickles,
        sizes.long_files,
        sizes.large_classes,
        names.vague_names,
        texts.docstrings_that_ask,
        texts.names_that_do_not_exist,
        registries.compared_texts,
        registries.untyped_messages,
        registries.built_attribute_names,
    )
}
