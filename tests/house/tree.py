"""The files of a repository as the house rules see them: parsed once, changed in memory only."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "batchpool"
FOLDERS = (PACKAGE, "tests", "bench")


@dataclass(frozen=True)
class Import:
    """One imported dotted name. kind: "module" where it runs when the file is imported, "inside"
    within a function, "typing" under `if TYPE_CHECKING`."""

    line: int
    name: str
    kind: str = "module"


@dataclass(frozen=True)
class Text:
    """A docstring or a comment."""

    line: int
    text: str
    is_docstring: bool


class Source:
    """One Python file: its text and what was read off its syntax tree, each on first use."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path  # from the root, with slashes
        self.text = text
        self.folder, _, name = path.rpartition("/")
        stem = path.removesuffix(".py")
        self.module = (self.folder if name == "__init__.py" else stem).replace("/", ".")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, also within functions and under TYPE_CHECKING.

        `from batchpool.core import ring` gives batchpool.core.ring, whether ring is a module or a
        name of one.
        """
        return list(self._imports(self.tree, "module"))

    def _imports(self, parent: ast.AST, kind: str) -> Iterator[Import]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(node.lineno, alias.name, kind)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield Import(node.lineno, f"{self._origin(node)}.{alias.name}", kind)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._imports(node, "inside")
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from self._imports(node, "typing")
            elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                yield from self._imports(node, kind)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.folder.split("/")
        above = parts[: len(parts) - node.level + 1]
        return ".".join([*above, *([node.module] if node.module else [])])

    @cached_property
    def docstring_nodes(self) -> list[ast.Constant]:
        """The constants that are docstrings, also those below an attribute."""
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]

    @cached_property
    def docstrings(self) -> list[Text]:
        return [Text(n.lineno, str(n.value), is_docstring=True) for n in self.docstring_nodes]

    @cached_property
    def comments(self) -> list[Text]:
        """Comments without their #; those on lines of their own that follow each other are one."""
        found: list[Text] = []
        last_line = -1
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type != tokenize.COMMENT:
                continue
            line, alone = token.start[0], not token.line[: token.start[1]].strip()
            text = token.string.lstrip("#").strip()
            if alone and line == last_line + 1:
                found[-1] = Text(found[-1].line, f"{found[-1].text}\n{text}", is_docstring=False)
            else:
                found.append(Text(line, text, is_docstring=False))
            last_line = line if alone else -1
        return found

    @cached_property
    def strings(self) -> list[ast.Constant]:
        """Text constants, str and bytes, that are not docstrings."""
        docstrings = set(map(id, self.docstring_nodes))
        return [
            node
            for node in self.nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str | bytes)
            and id(node) not in docstrings
        ]

    @cached_property
    def defined(self) -> set[str]:
        """All names that the file binds: functions, classes, arguments, variables, attributes."""
        found: set[str] = set()
        for node in self.nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
        return found

    @cached_property
    def words(self) -> set[str]:
        """All identifiers of the code, and the words of its string constants."""
        found: set[str] = set()
        for node in self.nodes:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.ClassDef(name=name):
                    found.add(name)
                case ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.alias(name=name, asname=other):
                    found |= {*name.split("."), *([other] if other else [])}
        for constant in self.strings:
            value = constant.value
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            found |= set(re.findall(r"[A-Za-z_]\w*", text))
        return found


class Tree:
    """Files by path. `sources` are the Python files; `paths` also holds the names of others."""

    def __init__(self, sources: Mapping[str, Source], others: Mapping[str, int]) -> None:
        self.sources = dict(sorted(sources.items()))
        self.others = dict(others)  # path: lines
        self.modules = {source.module: source for source in self.sources.values()}
        self.paths = {*self.sources, *self.others}

    @classmethod
    def read(cls, root: Path = ROOT) -> Tree:
        """The files of a checkout; of what is neither code nor a benchmark's result the lines."""
        sources, others = {}, {}
        for folder in FOLDERS:
            for path in sorted((root / folder).rglob("*")):
                name = path.relative_to(root).as_posix()
                if not path.is_file() or {"__pycache__", "results"} & set(path.parts):
                    continue
                if path.suffix == ".py":
                    sources[name] = Source(name, path.read_text(encoding="utf-8"))
                elif path.suffix != ".so":
                    others[name] = path.read_bytes().count(b"\n")
        skipped = {".git", ".venv", *FOLDERS}
        for top in sorted(root.iterdir()):
            if top.name not in skipped:
                files = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]
                others |= {path.relative_to(root).as_posix(): 0 for path in files}
        return cls(sources, others)

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Tree:
        """A tree of the given texts, for a test."""
        return cls({path: Source(path, text) for path, text in texts.items()}, {})

    def edited(self, path: str, text: str) -> Tree:
        """This tree with one file replaced or added; the others are not parsed again."""
        return Tree({**self.sources, path: Source(path, text)}, self.others)

    def under(self, *folders: str) -> list[Source]:
        """The Python files below the folders."""
        starts = tuple(f"{folder}/" for folder in folders)
        return [source for path, source in self.sources.items() if path.startswith(starts)]

    @property
    def package(self) -> list[Source]:
        return self.under(PACKAGE)

    def target(self, name: str) -> Source | None:
        """The file that an imported dotted name stands in; None for names of other packages."""
        parts = name.split(".")
        while parts:
            if source := self.modules.get(".".join(parts)):
                return source
            parts.pop()
        return None


def said(source: Source, line: int, text: str) -> str:
    """An offence as a line of the report."""
    return f"{source.path}:{line}: {text}"
