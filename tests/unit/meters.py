"""Meters and a flight recorder on memory of their own, for those who count into them."""

from __future__ import annotations

import os

from batchpool.core.metrics.segments import meters_layout, recorder_layout
from batchpool.shm.segment import create
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder


def new_meters(frontends: int = 1, *models: str) -> Counters:
    """Meters of a pool that serves these models."""
    fd = create(meters_layout(frontends), sealed=True)
    try:
        meters = Counters(fd, frontends)
    finally:
        os.close(fd)
    for entry, name in enumerate(models):
        meters.name_model(entry, name)
        meters.alive[entry] = 1
    return meters


def new_recorder() -> FlightRecorder:
    fd = create(recorder_layout(), sealed=True)
    try:
        return FlightRecorder(fd)
    finally:
        os.close(fd)
