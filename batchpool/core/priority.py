"""Request priorities: 1 is served first, 255 last; 0 stands for the default."""

from __future__ import annotations

from typing import Final

HIGHEST: Final = 1
DEFAULT: Final = 128
BACKGROUND: Final = 200  # of work that nobody waits for, behind every interactive request
LOWEST: Final = 255


def effective(priority: int) -> int:
    """A priority from outside as one of 1 to 255: 0 becomes the default, others are clamped."""
    return min(max(priority, HIGHEST), LOWEST) if priority else DEFAULT
