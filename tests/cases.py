"""The page of field cases, made of the tests: docs/cases.md.

    python -m tests.cases [FOLDER]

writes it anew in a checkout (default: the current directory). The cases are in tests/cases.toml.
A test shows a case if its docstring begins with the case's number, as in "C24: ..." or
"C43, C47: ..."; so do the checks of tests/gpu/run.py, which is run by hand.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CASES = "tests/cases.toml"
PAGE = "docs/cases.md"
GPU = "tests/gpu/run.py"

_NUMBERS = re.compile(r"C\d+(?:, C\d+)*(?=: \S)")
_BEGINNING = re.compile(r"C\d+\b")

_HEAD = """\
# Field cases

Faults that users of comparable servers have reported in public, and the tests that show how
batchpool meets each of them. The numbers, not all of which are in use, stand at the beginning of
the tests' docstrings, and `make readme` makes this page of them. Tests run with `make test` unless
the table says what else they need.

| case | elsewhere | shown by |
|---|---|---|
"""


class CaseError(ValueError):
    """A table or a docstring that the page cannot be made of. The text says where and why."""


@dataclass(frozen=True)
class Case:
    """A fault that was reported elsewhere. sources: as OWNER/REPOSITORY#NUMBER."""

    number: str
    elsewhere: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class ShowingTest:
    """A test, as PATH::NAME, the cases it shows, and what it needs that not every run has."""

    place: str
    numbers: tuple[str, ...]
    needs: str = ""


def read_cases(text: str) -> list[Case]:
    """The cases of a table in TOML, by number.

    Raises CaseError for a case without its sentence or a source.
    """
    found = []
    for number, entry in sorted(tomllib.loads(text).items()):
        elsewhere, sources = entry.get("elsewhere", ""), tuple(entry.get("sources", ()))
        if not re.fullmatch(r"C\d\d", number) or not elsewhere.endswith(".") or not sources:
            raise CaseError(f"{CASES}: [{number}] needs `elsewhere`, a sentence, and `sources`")
        for source in sources:
            if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source):
                raise CaseError(f"{CASES}: [{number}]: {source!r} is not OWNER/REPOSITORY#NUMBER")
        found.append(Case(number, elsewhere, sources))
    return found


def showing_tests_in(path: str, text: str) -> Iterator[ShowingTest]:
    """The tests of one file that show cases.

    Raises CaseError for a docstring that begins with a number and not with "C24: ...".
    """
    for name, function in _functions(ast.parse(text)):
        docstring = ast.get_docstring(function) or ""
        if not _BEGINNING.match(docstring):
            continue
        numbers = _NUMBERS.match(docstring)
        if numbers is None:
            raise CaseError(f'{path}::{name}: expected "C24: ..." or "C43, C47: ..."')
        needs = "on a machine with GPUs" if path == GPU else _needs(function)
        yield ShowingTest(f"{path}::{name}", tuple(numbers[0].split(", ")), needs)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    """Tests and checks, also those of classes, with the names that pytest gives them."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for part in inner:
            if isinstance(part, _Function) and part.name.startswith(("test_", "check_")):
                yield prefix + part.name, part


def _needs(function: _Function) -> str:
    marks = " ".join(ast.unparse(mark) for mark in function.decorator_list)
    if "pytest.mark.long" in marks:
        return "`make test-long`"
    if "getuid" in marks or "needs_root" in marks:
        return "as root"
    return ""


def showing_tests(root: Path) -> list[ShowingTest]:
    """All tests of a checkout that show cases, by place."""
    found: list[ShowingTest] = []
    for path in sorted([*(root / "tests").rglob("test_*.py"), root / GPU]):
        text = path.read_text(encoding="utf-8")
        found += showing_tests_in(path.relative_to(root).as_posix(), text)
    return found


def page(cases: Sequence[Case], tests: Sequence[ShowingTest]) -> str:
    """The page as Markdown.

    Raises CaseError for a case that no test shows, and for a test that shows an unknown one.
    """
    known = {case.number for case in cases}
    by_case: dict[str, list[ShowingTest]] = {number: [] for number in known}
    for test in tests:
        for number in test.numbers:
            if number not in known:
                raise CaseError(f"{test.place} shows {number}, which is not in {CASES}")
            by_case[number].append(test)
    unseen = sorted(number for number, showing in by_case.items() if not showing)
    if unseen:
        raise CaseError(f"no test shows {', '.join(unseen)}")
    return _HEAD + "".join(_line(case, by_case) for case in cases)


def _line(case: Case, by_case: Mapping[str, Sequence[ShowingTest]]) -> str:
    sources = ", ".join(f"[{source}]({_url(source)})" for source in case.sources)
    shown = "<br>".join(
        f"`{test.place}`" + (f" ({test.needs})" if test.needs else "")
        for test in by_case[case.number]
    )
    return f"| {case.number} | {case.elsewhere} {sources} | {shown} |\n"


def _url(source: str) -> str:
    """Of the thread; GitHub leads from an issue's address to the pull request of that number."""
    repository, _, number = source.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def page_of(root: Path) -> str:
    """The page of a checkout; raises CaseError as the functions above do."""
    return page(read_cases((root / CASES).read_text(encoding="utf-8")), showing_tests(root))


def main(words: Sequence[str]) -> int:
    """Write the page of the checkout `words[0]` anew; exit status 1 if it cannot be made."""
    root = Path(words[0] if words else ".")
    try:
        text = page_of(root)
    except CaseError as exc:
        print(f"tests.cases: error: {exc}", file=sys.stderr)
        return 1
    (root / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
