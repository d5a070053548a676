"""Stores that batchpool wrote when their version was 3, in which callers had turns whatever their
origin.

Both hold the same 23 tasks of the model m: a result under a key, one that failed for good, one that
is tried again 500 ms later, one whose process died while it ran, two of each of six names at
10.0.0.1, six of 2001:db8::/64, and one that was taken back.
"""

from __future__ import annotations

import gzip
from pathlib import Path

_FOLDER = Path(__file__).parent


def unpack(name: str, path: Path) -> None:
    """Write one of the files of this folder, without its .gz, to a path."""
    path.write_bytes(gzip.decompress((_FOLDER / f"{name}.gz").read_bytes()))
