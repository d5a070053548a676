"""The house rules that a program can check: floors, purity, file sizes, names, light imports.

Floors, lowest first; a file imports only from lower floors and from its own:

    core < wire < shm < model < control < log < process < client < inprocess < batchpool (the
    root, what `import batchpool` gives) < worker < batcher < supervisor < tasks < frontend < cli
    < examples
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "batchpool"
LONGEST_FILE = 410  # lines

FLOORS = [
    "core",
    "wire",
    "shm",
    "model",
    "control",
    "log",
    "process",
    "client",
    "inprocess",
    "__init__",
    "worker",
    "batcher",
    "supervisor",
    "tasks",
    "frontend",
    "cli",
    "examples",
]
RANK = {floor: rank for rank, floor in enumerate(FLOORS)} | {"__main__": FLOORS.index("cli")}

CLOCKS_AND_SYSTEM = {
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "mmap", "multiprocessing", "os",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess",
    "tempfile", "threading", "time", "uuid",
}  # fmt: skip
HTTP = {"aiohttp", "h11", "http", "httptools", "httpx", "starlette", "urllib", "uvicorn"}
PICKLES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
NO_TORCH = set(RANK) - {"examples", "inprocess", "model", "worker"}

FORBIDDEN_WORDS = {"manager", "handler", "util", "helper", "base", "common", "data", "info"}
# Names that another library looks for.
IMPOSED_NAMES = {
    "data_received",  # asyncio.Protocol
    "nvmlDeviceGetMemoryInfo",  # pynvml
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PACKAGE_FILES = sources("batchpool")


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def floor_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of the file, inside functions too.

    `from batchpool.core import ring` gives batchpool.core.ring: whether the last part is a
    module or a name in one makes no difference to the floor.
    """
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def imported_floor(name: str) -> str | None:
    """The floor of a dotted name, None for names outside the package."""
    parts = name.split(".")
    if parts[0] != "batchpool":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def outside(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of the file's imports from outside the package."""
    for line, name in imports(path):
        top = name.split(".")[0]
        if top not in ("batchpool", "__future__"):
            yield line, top


def offences(forbidden: set[str], floors: set[str]) -> list[str]:
    return [
        f"{where(path)}:{line}: {top}"
        for path in PACKAGE_FILES
        if floor_of(path) in floors
        for line, top in outside(path)
        if top in forbidden
    ]


def words(name: str) -> set[str]:
    """The lower-case words of a snake_case or CamelCase name, without a plural s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    yield 1, path.stem.removeprefix("test_")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def test_every_file_has_a_floor() -> None:
    assert PACKAGE_FILES
    assert {floor_of(path) for path in PACKAGE_FILES} <= RANK.keys()


def test_files_import_from_lower_floors_only() -> None:
    upward = [
        f"{where(path)}:{line}: {floor_of(path)} imports {name}"
        for path in PACKAGE_FILES
        for line, name in imports(path)
        if (floor := imported_floor(name)) and RANK[floor] > RANK[floor_of(path)]
    ]
    assert upward == []


def test_examples_use_the_public_names_only() -> None:
    inside = [
        f"{where(path)}:{line}: {name}"
        for path in PACKAGE_FILES
        if floor_of(path) == "examples"
        for line, name in imports(path)
        if imported_floor(name) not in (None, "__init__", "examples")
    ]
    assert inside == []


def test_core_is_pure() -> None:
    allowed = (sys.stdlib_module_names - CLOCKS_AND_SYSTEM) | {"numpy"}
    impure = [
        f"{where(path)}:{line}: {top}"
        for path in sources("batchpool/core")
        for line, top in outside(path)
        if top not in allowed
    ]
    impure += [
        f"{where(path)}:{node.lineno}: {node.func.id}()"
        for path in sources("batchpool/core")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input"}
    ]
    assert impure == []


def test_nothing_below_the_front_end_speaks_http() -> None:
    below = {floor for floor in RANK if RANK[floor] < RANK["frontend"]}
    assert offences(HTTP, below) == []


def test_only_models_and_their_workers_import_torch() -> None:
    assert offences({"torch"}, NO_TORCH) == []


def test_nothing_is_pickled() -> None:
    assert offences(PICKLES, set(RANK)) == []


def test_no_file_is_long() -> None:
    long = []
    for folder in ("batchpool", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            measured = "results" in path.parts or "__pycache__" in path.parts
            if path.is_file() and not measured:
                lines = path.read_bytes().count(b"\n")
                if lines > LONGEST_FILE:
                    long.append(f"{where(path)}: {lines} lines")
    assert long == []


def test_names_say_what_a_thing_is() -> None:
    vague = [
        f"{where(path)}:{line}: {name}"
        for path in sources("batchpool", "tests", "bench")
        for line, name in defined_names(path)
        if words(name) & FORBIDDEN_WORDS
        and name not in IMPOSED_NAMES
        and not name.startswith("test_")  # a test's name is a sentence and may use any word
    ]
    assert vague == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ring", {"ring"}),
        ("LaneManager", {"lane", "manager"}),
        ("http_utils", {"http", "util", "utils"}),
        ("HTTPHandler", {"http", "handler"}),
        ("metadata", {"metadata"}),
        ("_base2", {"base"}),
    ],
)
def test_words_of_a_name(name: str, expected: set[str]) -> None:
    assert words(name) == expected


def test_import_batchpool_is_light() -> None:
    code = "import sys, batchpool; print('\\n'.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "batchpool" in loaded
    heavy = {"torch", "starlette", "uvicorn", "httptools", "uvloop", "transformers"}
    assert loaded & heavy == set()
