"""The documents are right about the repository: links, code, paths, commands, lines to read."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.cli.parser import _parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "bench/README.md",
        ROOT / "systemd/README.md",
    ]
)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^(?: {4}[^\n]*|)\n)+", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_OUTSIDE = ("http://", "https://", "mailto:")
_FILE_TYPES = "py|md|toml|txt|yml|json|svg|png|service|socket|conf|lua|js|css|html"
_FILE = re.compile(rf"[\w.\\-]+(?:/[\w.\\-]+)+\.(?:{_FILE_TYPES})|[\w.-]+(?:/[\w.-]+)*/")
# Made by a command, or a place on the machine that a pool is installed on.
_NOT_IN_THE_REPOSITORY = ("site/", "dist/", ".venv/", "/", "~", "$")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each fenced block."""
    for match in _FENCE.finditer(text):
        yield match[3].strip(), textwrap.dedent(match[4])


def prose(text: str) -> str:
    """The text without its fenced and indented blocks."""
    text = _FENCE.sub("", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def code_lines(text: str) -> Iterator[str]:
    """Each line of a block without a language, and each piece of code in the prose."""
    for language, block in fences(text):
        if language in ("", "sh", "console"):
            yield from block.splitlines()
    without = _FENCE.sub("", text)
    yield from (line.strip() for line in without.splitlines() if line.startswith("    "))
    yield from _CODE.findall(prose(text))


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub and mkdocs make them."""
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"[^\w\- ]", "", words).strip().lower().replace(" ", "-"))
    return found


def links(name: str) -> Iterator[tuple[Path, str]]:
    """The file and the anchor of each link to a place in the repository."""
    folder = (ROOT / name).parent
    for target in _LINK.findall(prose(read(name))):
        if not target.startswith(_OUTSIDE):
            path, _, anchor = target.partition("#")
            yield ((folder / path.replace("\\", "")) if path else ROOT / name), anchor


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    for path, anchor in links(name):
        assert path.exists(), f"{name}: {path}"
        if anchor:
            there = anchors(path.read_text(encoding="utf-8"))
            assert anchor in there, f"{name}: {path.name}#{anchor}, which has {sorted(there)}"


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_python_compiles(name: str) -> None:
    for language, block in fences(read(name)):
        if language == "python":
            compile(block, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def paths_in(text: str) -> Iterator[str]:
    """The pieces of code that are paths of files or folders of the repository."""
    for code in _CODE.findall(prose(text)):
        if _FILE.fullmatch(code) and not code.startswith(_NOT_IN_THE_REPOSITORY):
            yield code.replace("\\", "")


@pytest.mark.parametrize("name", NAMES)
def test_every_path_exists(name: str) -> None:
    folders = (ROOT, ROOT / "batchpool", (ROOT / name).parent)
    for path in paths_in(read(name)):
        assert any((folder / path).exists() for folder in folders), f"{name}: `{path}`"


def options() -> dict[str, list[str]]:
    """The long options of each command of `batchpool`."""
    return {name: parser.options for name, parser in _parser()[1].items()}


def commands_in(text: str, program: str) -> Iterator[list[str]]:
    """The words after `program` in each line of code that starts with it."""
    for line in code_lines(text):
        words = line.split(" #")[0].split(" > ")[0]
        try:
            parts = shlex.split(words)
        except ValueError:
            continue  # the first of several lines
        while parts and (re.fullmatch(r"[A-Z_]+=.*", parts[0]) or parts[0] == "$"):
            parts.pop(0)
        if parts and parts[0].rsplit("/", 1)[-1] == program:
            yield parts[1:]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_batchpool_has_these_flags(name: str) -> None:
    known = options()
    for words in commands_in(read(name), "batchpool"):
        if not words or words[0] in ("--version", "/"):  # "batchpool / it" heads a column
            continue
        assert words[0] in known, f"{name}: batchpool {' '.join(words)}"
        of = words[0]
        for word in words[1:]:
            if word == "--":
                of = "serve"  # whose options follow
            elif word.startswith("--"):
                assert word.split("=")[0] in known[of], f"{name}: batchpool {' '.join(words)}"


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_make_exists(name: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for words in commands_in(read(name), "make"):
        for word in words:
            if "=" not in word and not word.startswith("-"):
                assert word in targets, f"{name}: make {' '.join(words)}"


@pytest.mark.parametrize("name", NAMES)
def test_every_module_that_is_run_exists(name: str) -> None:
    for module in re.findall(r"\bpython3? -m ((?:batchpool|bench|tests)(?:\.\w+)*)", read(name)):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), (
            f"{name}: python -m {module}"
        )


def test_the_checks_find_what_they_look_for() -> None:
    everything = "\n".join(map(read, NAMES))
    assert sum(1 for name in NAMES for _ in links(name)) > 50
    assert sum(language == "python" for language, _ in fences(everything)) > 4
    assert sum(1 for _ in paths_in(everything)) > 60
    assert {words[0] for words in commands_in(everything, "batchpool") if words} >= {*options()}
    assert sum(1 for _ in commands_in(everything, "make")) > 15


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", read("mkdocs.yml").partition("\nnav:")[2]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert listed == pages


def reading_order() -> list[str]:
    section = read("docs/architecture.md").partition("## Ten files to read")[2]
    return re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)


def test_the_ten_files_have_about_so_many_lines() -> None:
    files = reading_order()
    assert len(files) == len(set(files)) == 10
    (said,) = re.findall(r"about ([\d,]+) lines in all", read("docs/architecture.md"))
    lines = sum(len(read(name).splitlines()) for name in files)
    assert lines == pytest.approx(int(said.replace(",", "")), rel=0.05)
    assert lines < 3000


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_knows_dark_pages(path: Path) -> None:
    picture = ElementTree.parse(path).getroot()
    assert picture.get("role") == "img"
    assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert 80 <= len(read("README.md").splitlines()) <= 120


def test_the_workflow_runs_the_check_that_everybody_runs() -> None:
    assert "run: bash .ci/run\n" in read(".github/workflows/test.yml")
    assert "make docs" in read(".github/workflows/test.yml")
