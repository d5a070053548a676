"""House rules about imports: the order of floors, circles, purity, and which package may use what.

Each rule is a function from a `Tree` to its offences, as lines "path:line: what".
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator

from tests.house.tree import PACKAGE, Source, Tree, said

# Lowest first; a file belongs to the longest prefix of its path that stands here. "batchpool" are
# the files of the package's own folder that are not named: what `import batchpool` gives.
FLOORS = (
    "core/compiled",
    "core/errors",
    "core/priority",
    "core",
    "core/text",
    "core/tensors",
    "core/layout",
    "core/config",
    "core/scheduler",
    "core/metrics",
    "text",
    "arrow",
    "wire",
    "shm",
    "shm/stats",
    "model",
    "generator",
    "control",
    "log",
    "process",
    "credentials",
    "client",
    "inprocess",
    "__init__",
    "batches",
    "tasks",
    "worker/backends",
    "worker",
    "batcher",
    "supervisor/plan",
    "supervisor/host",
    "supervisor/children",
    "supervisor/resources",
    "supervisor/fleet",
    "supervisor/reload",
    "supervisor",
    "frontend/parser",
    "frontend/http",
    "frontend/service",
    "frontend/fast",
    "frontend/dashboard",
    "frontend/asgi",
    "frontend",
    "bulk",
    "consume",
    "contrib",
    "cli",
    "__main__",
    "examples",
    "models",
)
RANK = {floor: rank for rank, floor in enumerate(FLOORS)}
PROCESSES = ("worker", "batcher", "supervisor", "frontend", "tasks")

# Of the standard library: clocks, the system, and roads to modules that no import statement names.
IMPURE_MODULES = {
    "asyncio", "builtins", "concurrent", "ctypes", "datetime", "fcntl", "glob", "importlib", "io",
    "logging", "mmap", "multiprocessing", "os", "pathlib", "pkgutil", "posix", "random", "runpy",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile",
    "threading", "time", "uuid",
}  # fmt: skip
IMPURE_NAMES = {"__import__", "__builtins__", "open", "print", "input", "exec", "eval"}
HTTP = {"aiohttp", "h11", "http", "httptools", "httpx", "starlette", "urllib", "uvicorn"}
PICKLES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
WITH_TORCH = ("examples", "inprocess", "model", "models", "worker")


def floor_of(source: Source) -> str | None:
    """The floor of a file of the package; None where it has none."""
    path = source.path.removeprefix(f"{PACKAGE}/").removesuffix(".py")
    parts = path.removesuffix("/__init__").split("/")
    while parts:
        if (floor := "/".join(parts)) in RANK:
            return floor
        parts.pop()
    return None


def top_of(source: Source) -> str:
    """The first folder below the package, or the file's own name there."""
    return source.path.split("/")[1].removesuffix(".py")


def inner_imports(tree: Tree) -> Iterator[tuple[Source, int, Source, str]]:
    """(file, line, imported file, kind) of all imports within the package."""
    for source in tree.package:
        for item in source.imports:
            target = tree.target(item.name) if item.name.startswith(PACKAGE) else None
            if target is not None and target is not source:
                yield source, item.line, target, item.kind


def files_without_a_floor(tree: Tree) -> list[str]:
    """A file of the package stands on a floor."""
    return [said(source, 1, "no floor") for source in tree.package if floor_of(source) is None]


def upward_imports(tree: Tree) -> list[str]:
    """A file imports from lower floors and from its own."""
    found = []
    for source, line, target, _ in inner_imports(tree):
        own, other = floor_of(source), floor_of(target)
        if own and other and RANK[other] > RANK[own]:
            found.append(said(source, line, f"{own} imports {target.path} of {other}"))
    return found


def imports_of_nothing(tree: Tree) -> list[str]:
    """An import of a module of the package finds it."""
    found = []
    for source in tree.sources.values():
        for item in source.imports:
            if item.name.split(".")[0] != PACKAGE:
                continue
            target = tree.target(item.name)
            rest = item.name[len(target.module) + 1 :] if target else item.name
            if target is None or rest.count(".") > 0:
                found.append(said(source, item.line, f"no module {item.name}"))
    return found


def circles_of_files(tree: Tree) -> list[str]:
    """No file imports itself by way of others."""
    return circles((source.path, target.path) for source, _, target, _ in inner_imports(tree))


def circles_of_packages(tree: Tree) -> list[str]:
    """No package imports itself by way of others, at any depth; a file of the root is its own."""
    found = []
    for depth in (1, 2, 3):
        edges = (
            (package_of(source, depth), package_of(target, depth))
            for source, _, target, _ in inner_imports(tree)
        )
        found += [circle for circle in circles(edges) if circle not in found]
    return found


def package_of(source: Source, depth: int) -> str:
    """The folder of a file, cut to so many folders below the package."""
    folders = source.folder.split("/")[1 : depth + 1]
    return "/".join(folders) if folders else source.path


def circles(edges: Iterable[tuple[str, str]]) -> list[str]:
    """The strongly connected parts of more than one place, each as "a, b, c" (Tarjan 1972)."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set())
        after.setdefault(b, set())
        if a != b:
            after[a].add(b)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[str] = []

    def visit(place: str) -> None:
        number[place] = low[place] = len(number)
        open_.append(place)
        for following in sorted(after[place]):
            if following not in number:
                visit(following)
                low[place] = min(low[place], low[following])
            elif following in open_:
                low[place] = min(low[place], number[following])
        if low[place] == number[place]:
            at = open_.index(place)
            part = open_[at:]
            del open_[at:]
            if len(part) > 1:
                found.append(", ".join(sorted(part)))

    for place in sorted(after):
        if place not in number:
            visit(place)
    return found


def processes_that_import_each_other(tree: Tree) -> list[str]:
    """Worker, batcher, supervisor, frontend and tasks share what is below them and nothing else."""
    return [
        said(source, line, f"{top_of(source)} imports {target.path}")
        for source, line, target, _ in inner_imports(tree)
        if top_of(source) in PROCESSES
        and top_of(target) in PROCESSES
        and top_of(source) != top_of(target)
    ]


def examples_of_inner_names(tree: Tree) -> list[str]:
    """An example, and a ready model, uses the public names only."""
    return [
        said(source, line, f"imports {target.path}")
        for source, line, target, _ in inner_imports(tree)
        if top_of(source) in ("examples", "models")
        and top_of(target) not in ("__init__", "contrib", top_of(source))
    ]


def impurities_of_core(tree: Tree) -> list[str]:
    """Core is standard library and numpy, without clock, system, files and hidden imports."""
    allowed = (sys.stdlib_module_names - IMPURE_MODULES) | {"numpy", PACKAGE, "__future__"}
    found = []
    for source in tree.under(f"{PACKAGE}/core"):
        for item in source.imports:
            if item.name.split(".")[0] not in allowed:
                found.append(said(source, item.line, f"imports {item.name}"))
        for node in source.nodes:
            if isinstance(node, ast.Name) and node.id in IMPURE_NAMES:
                found.append(said(source, node.lineno, node.id))
            elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules":
                found.append(said(source, node.lineno, "sys.modules"))
    return found


def imports_from(tree: Tree, forbidden: set[str], where: Callable[[Source], bool]) -> list[str]:
    """The imports of other packages' modules that the chosen files may not have."""
    return [
        said(source, item.line, f"imports {item.name}")
        for source in tree.package
        if where(source)
        for item in source.imports
        if item.name.split(".")[0] in forbidden
    ]


def http_below_the_frontend(tree: Tree) -> list[str]:
    """HTTP begins at the front end."""
    return imports_from(
        tree, HTTP, lambda source: RANK.get(floor_of(source) or "", 0) < RANK["frontend/http"]
    )


def torch_outside_of_models(tree: Tree) -> list[str]:
    """Only models and their workers import torch."""
    return imports_from(tree, {"torch"}, lambda source: top_of(source) not in WITH_TORCH)


def pickles(tree: Tree) -> list[str]:
    """Nothing is pickled."""
    return imports_from(tree, PICKLES, lambda source: True)
