"""The settings of tasks, of the table [server]."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from batchpool.core.config.server_table import ServerConfig
from batchpool.tasks.settings import TaskSettings


@pytest.mark.parametrize(
    ("store", "asked_mib", "most_mib"),
    [("", 1024, 1024), ("redis://h", 1024, 256), ("redis://h", 64, 64)],
)
def test_a_server_takes_inputs_of_at_most_a_half_of_what_would_break_its_connections(
    store: str, asked_mib: int, most_mib: int
) -> None:
    table = asdict(ServerConfig(tasks_store=store, task_max_body_mib=asked_mib))
    assert TaskSettings.of(table).most_body_bytes == most_mib * 2**20
