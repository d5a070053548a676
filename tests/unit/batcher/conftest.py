"""Batcher processes whose supervisor is the test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from batchpool.control.process_messages import BatcherModel
from batchpool.process import bootstrap
from tests.unit.batcher.process_bench import Start, Supervisor


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes supervisors; the batchers do not freeze the objects of the tests."""
    monkeypatch.setattr(bootstrap, "settle", lambda: None)
    level = logging.getLogger().level
    made: list[Supervisor] = []

    def make(*models: BatcherModel, **options: Any) -> Supervisor:
        made.append(Supervisor(*models, **options))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.end()
    logging.getLogger().setLevel(level)
