"""Whether the hot modules run compiled; pyproject.toml lists them, and this one with them."""

from __future__ import annotations

from typing import Final

COMPILED: Final = not __file__.endswith(".py")
CODE: Final = "compiled" if COMPILED else "interpreted"
