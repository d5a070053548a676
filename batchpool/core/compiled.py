"""Flag for compiled modules: this one is compiled with the others that pyproject.toml lists."""

from __future__ import annotations

from typing import Final

COMPILED: Final = not __file__.endswith(".py")
CODE: Final = "compiled" if COMPILED else "interpreted"
