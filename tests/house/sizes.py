"""House rules about sizes: lines of a file, methods of a class."""

from __future__ import annotations

import ast

from tests.house.tree import Source, Tree, said

LONGEST_FILE = 400  # lines
MOST_METHODS = 20


def long_files(tree: Tree) -> list[str]:
    """A file of code, whatever its language, has at most so many lines."""
    lines = {path: source.text.count("\n") for path, source in tree.sources.items()}
    lines |= {path: count for path, count in tree.others.items() if count}
    return [f"{path}: {count} lines" for path, count in lines.items() if count > LONGEST_FILE]


def large_classes(tree: Tree) -> list[str]:
    """A class has at most so many methods, or above it a comment `# methods: reason`."""
    return [
        said(source, node.lineno, f"{node.name} has {count} methods")
        for source in tree.sources.values()
        for node in source.classes
        if (count := methods(node)) > MOST_METHODS and not has_reason(source, node)
    ]


def methods(node: ast.ClassDef) -> int:
    """Functions of the class itself, properties included; setters count once more."""
    return sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)


def has_reason(source: Source, node: ast.ClassDef) -> bool:
    """The line above the class and its decorators begins with `# methods: ` and says something."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.text.split("\n")[: first - 1]
    while lines and lines[-1].strip().startswith("#"):
        line = lines.pop().strip()
        if line.startswith("# methods: ") and len(line.split()) > 4:
            return True
    return False
