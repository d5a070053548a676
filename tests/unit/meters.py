"""Meters and a flight recorder on memory of their own, for those who count into them."""

from __future__ import annotations

import os

from batchpool.core.metrics.segments import meters_layout, recorder_layout
from batchpool.shm.segment import create
from batchpool.shm.stats.counters import Meters
from batchpool.shm.stats.flight_recorder import Recorder


def new_meters(frontends: int = 1, *models: str) -> Meters:
    """Meters of a pool that serves these models."""
    fd = create(meters_layout(frontends), sealed=True)
    try:
        meters = Meters(fd, frontends)
    finally:
        os.close(fd)
    for entry, name in enumerate(models):
        meters.name_model(entry, name)
        meters.alive[entry] = 1
    return meters


def new_recorder() -> Recorder:
    fd = create(recorder_layout(), sealed=True)
    try:
        return Recorder(fd)
    finally:
        os.close(fd)
