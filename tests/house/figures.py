"""Figures of a checkout's package: `python -m tests.house.figures [FOLDER] [--read FILE ...]`.

Files, lines, the median of both files and functions, the largest folder, classes with many
methods, and circles of imports: those of statements that run at import, those of all statements,
and those between packages. --read adds the lines of some files, for instance of a reading list.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.house.imports import circles, circles_of_packages, inner_imports
from tests.house.sizes import MOST_METHODS, methods
from tests.house.tree import ROOT, Tree


def figures(tree: Tree) -> dict[str, str]:
    """One line a figure: {name: value}."""
    lines = {source.path: source.text.count("\n") for source in tree.package}
    code = [count for path, count in lines.items() if not path.endswith("/__init__.py")]
    folders = Counter(source.folder for source in tree.package)
    folder, files = folders.most_common(1)[0]
    longest = max(lines, key=lambda path: lines[path])
    classes = [methods(node) for source in tree.package for node in source.classes]
    functions = sorted(lengths(tree))
    edges = list(inner_imports(tree))
    at_import = circles((a.path, b.path) for a, _, b, kind in edges if kind == "module")
    all_kinds = circles((a.path, b.path) for a, _, b, _ in edges)
    return {
        "files": f"{len(lines)}, {len(code)} without __init__.py",
        "lines": f"{sum(lines.values()):,}",
        "lines of a file, median": f"{median(code):g}",
        "longest file": f"{lines[longest]} lines, {longest}",
        "lines of a function, median": f"{median(functions):g}, at most {functions[-1]}",
        "folders": f"{len(folders)}",
        "largest folder": f"{files} files, {folder}",
        f"classes over {MOST_METHODS} methods": f"{sum(n > MOST_METHODS for n in classes)}",
        "methods of the largest class": f"{max(classes)}",
        "circles of files, imports at import time": told(at_import),
        "circles of files, all imports": told(all_kinds),
        "circles of packages, all imports": told(circles_of_packages(tree)),
    }


def told(found: list[str]) -> str:
    return f"{len(found)}" + (f": {'; '.join(found)}" if found else "")


def lengths(tree: Tree) -> Iterator[int]:
    """Lines of every function, decorators not counted."""
    for source in tree.package:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                yield node.end_lineno - node.lineno + 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of a checkout's package.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--read", nargs="+", default=[], metavar="FILE")
    args = parser.parse_args()
    rows = figures(Tree.read(args.folder))
    if args.read:
        read = sum((args.folder / name).read_bytes().count(b"\n") for name in args.read)
        rows[f"lines of {len(args.read)} files to read"] = f"{read:,}"
    for name, value in rows.items():
        print(f"{name:42} {value}")


if __name__ == "__main__":
    main()
