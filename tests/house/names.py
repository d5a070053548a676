"""House rules about names: words that say nothing are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import Source, Tree, said

FORBIDDEN_WORDS = {"manager", "handler", "util", "helper", "base", "common", "data", "info"}
# Names that another library looks for.
IMPOSED_NAMES = {
    "call_exception_handler",  # asyncio.AbstractEventLoop
    "data_received",  # asyncio.Protocol
    "nvmlDeviceGetMemoryInfo",  # pynvml
}


def vague_names(tree: Tree) -> list[str]:
    """Files, classes and functions have no forbidden word; a test's name is a sentence and may."""
    return [
        said(source, line, name)
        for source in tree.sources.values()
        for line, name in defined_names(source)
        if words(name) & FORBIDDEN_WORDS
        and name not in IMPOSED_NAMES
        and not name.startswith("test_")
    ]


def words(name: str) -> set[str]:
    """The lower-case words of a snake_case or CamelCase name, with and without a plural s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


def defined_names(source: Source) -> Iterator[tuple[int, str]]:
    yield 1, source.path.rpartition("/")[2].removesuffix(".py").removeprefix("test_")
    for node in source.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
