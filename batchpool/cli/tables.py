"""Plain values as text for a terminal: first single values, then tables.

Values may be texts of strangers, as the error of a model that quotes its input, or the name that a
local client gives itself: what would steer a terminal, or begin a line, is shown as an escape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from batchpool.core.text.escape import printable


def status_text(status: dict[str, Any]) -> str:
    """A status as text: first its single values, then its lists of objects as tables."""
    plain = {k: v for k, v in status.items() if not isinstance(v, (list, dict))}
    width = max((len(k) for k in plain), default=0)
    lines = [f"{printable(k):<{width}}  {_cell(v)}" for k, v in plain.items()]
    for name, value in status.items():
        if isinstance(value, dict):
            rows = [
                {"name": k, **v} if isinstance(v, dict) else {"name": k, "value": v}
                for k, v in value.items()
            ]
        elif isinstance(value, list):
            rows = [row if isinstance(row, dict) else {"value": row} for row in value]
        else:
            continue
        lines += ["", name, *(f"  {line}" for line in _table(rows))]
    return "\n".join(lines).strip("\n")


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["none"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [list(map(printable, columns))] + [
        [_cell(row.get(name)) for name in columns] for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or "-"
    return json.dumps(value) if isinstance(value, dict) else printable(str(value))
