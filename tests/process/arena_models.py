"""Models whose large inputs stand in the arenas of their lanes.

A picture that begins with b"gate-N|" leaves the note `met-gate-N` and runs until the note `gate-N`
is there; one that begins with b"once-N|" kills its worker the first time.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Numpy, first_time, note

MOST = 8 << 20


def meet(picture: bytes) -> None:
    """Let happen what a picture asks for."""
    what, bar, _ = picture[:16].partition(b"|")
    if not bar:
        return
    name = what.decode()
    if name.startswith("once") and first_time(name):
        os.kill(os.getpid(), signal.SIGKILL)
    note(f"met-{name}").touch()
    while name.startswith("gate") and not note(name).exists():
        time.sleep(0.002)


def crc_of(pictures: Any) -> np.ndarray[Any, Any]:
    return np.array([zlib.crc32(picture) for picture in pictures], np.int64)


class Pictures(Numpy):
    """The length and the checksum of each picture."""

    inputs = [bp.Tensor("picture", "bytes", max_bytes=MOST)]
    outputs = [bp.Tensor("length", "int64"), bp.Tensor("crc", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        pictures = batch["picture"]
        for picture in pictures:
            meet(picture)
        lengths = np.array([len(picture) for picture in pictures], np.int64)
        return {"length": lengths, "crc": crc_of(pictures)}


class Sounds(Numpy):
    """The sum and the length of each sound."""

    inputs = [bp.Tensor("sound", "int32", (bp.Dim(1 << 18, "t"),), pad=-1)]
    outputs = [bp.Tensor("sum", "int64"), bp.Tensor("size", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        sizes = batch.sizes["sound"][:, 0]
        sums = [row[:size].sum() for row, size in zip(batch["sound"], sizes, strict=True)]
        return {"sum": np.array(sums, np.int64), "size": sizes}


class Staged(Numpy):
    """As `Pictures`, in two stages that both read the picture."""

    inputs = [bp.Tensor("picture", "bytes", max_bytes=MOST)]
    features = [bp.Tensor("before", "int64"), "picture"]
    outputs = [bp.Tensor("before", "int64"), bp.Tensor("crc", "int64")]

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        return {"before": crc_of(batch["picture"])}

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"before": batch["before"], "crc": crc_of(batch["picture"])}
