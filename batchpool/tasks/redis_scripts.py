"""The Lua scripts of the store, as the server gets them: batchpool/tasks/lua/*.lua, each behind
common.lua there.

A script runs alone in the server, so that what it reads holds until it has written. Those that
bring tasks to their end and make room may also run where the server is full.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_WHEN_FULL = frozenset(
    {"claim", "finish", "retry", "cancel", "collect", "mark_read", "expire", "drop", "drop_letter"}
    | {"reclaim", "renew", "number", "beat"}
)


@dataclass(frozen=True, slots=True)
class Script:
    """text: for EVAL. digest: for EVALSHA, where the server knows it."""

    text: bytes
    digest: str


@cache
def script(name: str) -> Script:
    """The script of this name."""
    folder = resources.files(__package__) / "lua"
    flags = " flags=allow-oom" if name in _WHEN_FULL else ""
    parts = [(folder / f"{part}.lua").read_bytes() for part in ("common", name)]
    text = f"#!lua{flags}\n".encode() + b"".join(parts)
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
