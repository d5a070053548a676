"""Files that tests of bulk runs read and write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., tuple[int, str]]


def write(path: str, content: str | bytes) -> None:
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def lines(path: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON Lines."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def texts(n: int) -> str:
    """JSON Lines with the texts 0, 1, 2 and so on."""
    return "".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(n))
