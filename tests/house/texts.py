"""House rules about docstrings and comments: how they open, and that what they name exists."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from tests.house.tree import Source, Text, Tree, said

# A docstring says what a thing is or does; with these it would ask, or lean on the one before.
OPENINGS = ("What", "Who", "Whose", "Whether", "How", "The same", "Since")

QUOTED = re.compile(r"(?<![`\w])(`{1,2})([^`\n]+)\1(?!`)")
FILE = re.compile(r"(?:[\w.*-]+/)*[\w.*-]+\.(?:py|lua|md)")
PATH_IN_TEXT = re.compile(r"(?<![\w./*<>-])(?:[\w-]+/)*[\w-]+\.(?:py|lua|md)\b(?!\()")
DOTTED = re.compile(r"_*[A-Za-z]\w*(?:\.\w+)*")
MODULE = re.compile(r"\b(?:batchpool|bench|tests)(?:\.[A-Za-z_]\w*)+")
# Files of the pool's user, and no modules.
NOT_MODULES = re.compile(r"batchpool\.(?:toml|service|socket|sock)\b")

# Names of other libraries and of protocols that texts may quote.
FOREIGN = {
    "Expect",  # a header of HTTP
    "null",  # JSON
    "RequestResponseCycle",  # uvicorn
    "SentenceTransformer",  # sentence-transformers
}


def snake_case(name: str) -> str:
    """The code of an error, for instance, from the name of its class."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def docstrings_that_ask(tree: Tree) -> list[str]:
    """A docstring does not open with a question's word."""
    return [
        said(source, text.line, text.text.strip().split("\n")[0])
        for source in tree.sources.values()
        for text in source.docstrings
        if re.match(rf"(?:{'|'.join(OPENINGS)})\b", text.text.strip())
    ]


def names_that_do_not_exist(tree: Tree) -> list[str]:
    """Paths in docstrings and comments, and names in back-ticks, are those of something there."""
    known = Known(tree)
    return [
        said(source, text.line, missing)
        for source in tree.sources.values()
        for text in (*source.docstrings, *naming_comments(source))
        for missing in sorted(known.missing(source, text))
    ]


def naming_comments(source: Source) -> list[Text]:
    """The comments, read where one may name something: splitting into tokens is slow."""
    return source.comments if re.search(r"#.*(?:`|\.(?:py|lua|md)\b)", source.text) else []


class Known:
    """The names and paths of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._always = {*dir(builtins), *keyword.kwlist, *FOREIGN}
        self._package = self._defined(tree.package)
        self._all = self._package | self._defined(tree.under("tests", "bench"))

    def _defined(self, sources: Iterable[Source]) -> set[str]:
        """All names that something is bound to, modules and the codes of errors among them."""
        found: set[str] = set()
        for source in sources:
            found |= source.defined
            found |= set(source.module.split("."))
            found |= {snake_case(node.name) for node in source.classes}
        return found

    @cached_property
    def _endings(self) -> set[str]:
        """All paths, and each without its first folders."""
        return {
            "/".join(parts[i:])
            for path in self._tree.paths
            for parts in [path.split("/")]
            for i in range(len(parts))
        }

    @cached_property
    def _classes(self) -> dict[str, list[ast.ClassDef]]:
        found: dict[str, list[ast.ClassDef]] = {}
        for source in self._tree.sources.values():
            for node in source.classes:
                found.setdefault(node.name, []).append(node)
        return found

    def missing(self, source: Source, text: Text) -> set[str]:
        """Names in the text of things that the tree does not hold."""
        found = {path for path in PATH_IN_TEXT.findall(text.text) if path not in self._endings}
        for _, quoted in QUOTED.findall(text.text):
            found |= {name for name in self._named(quoted) if not self._exists(source, name)}
        return found

    def _named(self, quoted: str) -> Iterator[str]:
        """The parts of a quoted text that are names of files, modules and things of the code."""
        quoted = quoted.strip()
        call = re.fullmatch(r"([A-Za-z_][\w.]*)(?:\([^()]*\))?", quoted)
        if FILE.fullmatch(quoted):
            yield quoted
        elif call and DOTTED.fullmatch(call[1]) and not NOT_MODULES.match(quoted):
            yield call[1]
        else:  # a command, or a piece of code
            yield from MODULE.findall(NOT_MODULES.sub("", quoted))

    def _exists(self, source: Source, name: str) -> bool:
        if "/" in name or FILE.fullmatch(name):
            return "*" in name or name.strip("/") in self._endings
        parts = name.split(".")
        if re.fullmatch(r"__\w+__", parts[-1]):
            return True  # of the language
        if parts[0] in ("batchpool", "bench", "tests") and len(parts) > 1:
            return self._is_module_or_name(name)
        if len(parts) > 1 and parts[0] in self._classes:
            return any(self._has(node, parts[1]) for node in self._classes[parts[0]])
        if len(parts) > 1 and f"batchpool/{parts[0]}" in self._folders:
            return self._is_module_or_name(f"batchpool.{name}")
        defined = self._package if source.path.startswith("batchpool/") else self._all
        return all(
            part in source.words or part in defined or part in self._always for part in parts
        )

    @cached_property
    def _folders(self) -> set[str]:
        return {source.folder for source in self._tree.sources.values()}

    def _is_module_or_name(self, name: str) -> bool:
        """A dotted name from the root: a folder, a module, or a name in the words of its module."""
        if name.replace(".", "/") in self._folders:
            return True
        module = self._tree.target(name)
        if module is None:
            return False
        rest = name[len(module.module) + 1 :]
        return all(part in module.words for part in rest.split(".") if part)

    def _has(self, node: ast.ClassDef, name: str) -> bool:
        """A class has this attribute, or one of its bases may."""
        for part in ast.walk(node):
            match part:
                case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) if own == name:
                    return True
                case ast.Attribute(attr=own) | ast.Name(id=own) if own == name:
                    return True
                case ast.Constant(value=str(own)) if own == name:  # in __slots__
                    return True
        for origin in node.bases:
            origin_name = ast.unparse(origin).split("[")[0].split(".")[-1]
            others = self._classes.get(origin_name)
            if others is None:
                if origin_name not in ("object", "Protocol", "Generic", "ABC"):
                    return True  # of another package, which is not read here
            elif any(other is not node and self._has(other, name) for other in others):
                return True
        return False
