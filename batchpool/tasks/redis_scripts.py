"""The Lua scripts of the store, as the server gets them: batchpool/tasks/lua/*.lua, each between
common.lua and each.lua there.

A script runs alone in the server, so that what it reads holds until it has written. All but those
that make new tasks may also run where the server is full: tasks are to end, and to make room.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_WHEN_THERE_IS_ROOM = frozenset({"put", "replay"})


@dataclass(frozen=True, slots=True)
class Script:
    """text: for EVAL. digest: for EVALSHA, where the server knows it."""

    text: bytes
    digest: str


@cache
def script(name: str) -> Script:
    """The script of this name."""
    folder = resources.files(__package__) / "lua"
    flags = "" if name in _WHEN_THERE_IS_ROOM else " flags=allow-oom"
    common, body, each = (
        (folder / f"{part}.lua").read_bytes() for part in ("common", name, "each")
    )
    head = f"#!lua{flags}\n".encode()
    text = b"".join((head, common, b"local function body(ARGV)\n", body, b"end\n", each))
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
