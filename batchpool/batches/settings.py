"""The settings of files and batches, from the configuration's [server]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """files, bytes: the most that are kept. most_bytes: of one upload. ttl_ms: how long a file and
    the record of an ended batch are kept. most_lines: of one batch. attempts: of one line.
    client_slots: rows that a local client may have in flight."""

    files: int
    bytes: int
    most_bytes: int
    ttl_ms: int
    most_lines: int
    attempts: int
    client_slots: int

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> BatchSettings:
        """Those of the configuration's [server]."""
        return cls(
            files=server["files_max"],
            bytes=server["files_max_mib"] * _MIB,
            most_bytes=server["file_max_mib"] * _MIB,
            ttl_ms=int(server["file_ttl_s"] * 1000),
            most_lines=server["batch_max_lines"],
            attempts=server["task_attempts"],
            client_slots=server["client_slots"],
        )
