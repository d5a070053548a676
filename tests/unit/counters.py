"""Counters and a flight recorder on memory of their own, for those who count into them."""

from __future__ import annotations

import os

from batchpool.core.metrics.segments import counters_layout, flight_recorder_layout
from batchpool.shm.segment import create
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder


def new_counters(frontends: int = 1, *models: str) -> Counters:
    """Counters of a pool that serves these models."""
    fd = create(counters_layout(frontends), sealed=True)
    try:
        counters = Counters(fd, frontends)
    finally:
        os.close(fd)
    for entry, name in enumerate(models):
        counters.name_model(entry, name)
        counters.alive[entry] = 1
    return counters


def new_flight_recorder() -> FlightRecorder:
    fd = create(flight_recorder_layout(), sealed=True)
    try:
        return FlightRecorder(fd)
    finally:
        os.close(fd)
