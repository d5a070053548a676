"""The settings of the task process, from the configuration's [server]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchpool.tasks.record import StoreLimits

_MIB = 2**20
_SERVER_MOST_MIB = 256  # as one value; servers break connections that send 512


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """limits: of the store. most_body_bytes: of one input. max_age_ms: of an open task.
    client_slots: rows that a local client may have in flight. store, password_file: of a server
    that keeps the tasks; "" for a store on the disk. lease_s: of a claim there. nice: how far the
    process stands back."""

    limits: StoreLimits
    most_body_bytes: int
    max_age_ms: int
    attempts: int
    client_slots: int
    alert_command: str
    store: str = ""
    password_file: str = ""
    lease_s: float = 10.0
    nice: int = 0

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> TaskSettings:
        """Those of the configuration's [server]."""
        most_mib = server["task_max_body_mib"]
        if server["tasks_store"]:
            most_mib = min(most_mib, _SERVER_MOST_MIB)
        return cls(
            StoreLimits(
                open=server["tasks_max"],
                bytes=server["tasks_max_mib"] * _MIB,
                result_ttl_ms=int(server["task_result_ttl_s"] * 1000),
                grace_ms=int(server["task_collect_grace_s"] * 1000),
                evict_on_read=server["task_evict_on_read"],
                share=server["tasks_caller_share"],
            ),
            most_body_bytes=most_mib * _MIB,
            max_age_ms=int(server["task_max_age_s"] * 1000),
            attempts=server["task_attempts"],
            client_slots=server["client_slots"],
            alert_command=server["task_alert_command"],
            store=server["tasks_store"],
            password_file=server["tasks_store_password_file"],
            lease_s=server["tasks_lease_s"],
            nice=server["task_nice"],
        )
