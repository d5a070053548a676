"""A model whose native code overwrites the segment that its worker shares with the batcher."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.core.layout.segments import LANE_MAGIC, RECORDS, VERSION, WORDS_AT, worker_layout
from tests.process.models import Numpy, first_time, note

_LAYOUT = worker_layout(1, 1)
_COLUMNS_AT = min(column.offset for column in _LAYOUT.columns.values())

# What a row may do to the segment, by its number.
HARMS = {"zeros": 1, "ones": 2, "text": 3, "random": 4, "columns": 5, "counter": 6, "head": 7}


def own_segment() -> tuple[int, int]:
    """(address, bytes) of the worker's segment in this process: the mapping whose head has as many
    slots as a worker has records. The test's lanes have more."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(maxsplit=5)
        if "/batchpool." not in path:
            continue
        start, end = (int(part, 16) for part in span.split("-"))
        magic, version, slots, capacity = (ctypes.c_uint64 * 4).from_address(start)
        if (magic, version, slots, capacity) == (LANE_MAGIC, VERSION, RECORDS, RECORDS):
            return start, end - start
    raise LookupError("no mapping looks like a worker's segment")


def overwrite(harm: int) -> None:
    start, nbytes = own_segment()
    match harm:
        case 1:
            ctypes.memset(start, 0, nbytes)
        case 2:
            ctypes.memset(start, 0xFF, nbytes)
        case 3:
            ctypes.memmove(start, b"wild pointer! " * (nbytes // 14 + 1), nbytes)
        case 4:
            ctypes.memmove(start, Random(nbytes).randbytes(nbytes), nbytes)
        case 5:
            ctypes.memset(start + _COLUMNS_AT, 0x41, nbytes - _COLUMNS_AT)
        case 6:
            ctypes.memset(start + _LAYOUT.words["cq_tail"], 0x41, 8)
        case 7:
            ctypes.memset(start, 0x41, WORDS_AT)


class Wild(Numpy):
    """Gives tags back. A row with a harm overwrites the segment at the first attempt of its tag,
    once the test leaves the note `go-TAG`, leaves `done-TAG`, and then its batch never ends."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("harm", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("pid", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        for tag, harm in zip(batch["tag"].tolist(), batch["harm"].tolist(), strict=True):
            if harm and first_time(f"wild-{tag}"):
                while not note(f"go-{tag}").exists():
                    time.sleep(0.005)
                overwrite(harm)
                note(f"done-{tag}").touch()
                while True:
                    time.sleep(1)
        return {"tag": batch["tag"], "pid": np.full(batch.n, os.getpid())}
