"""Loads one module of batchpool from another source than its file's."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


class SourceImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads a module from this source. `install` it before the module is imported."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._code = compile(source, module, "exec")

    def install(self) -> None:
        if self._module in sys.modules:
            raise RuntimeError(f"{self._module} was imported before it could be changed")
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)
