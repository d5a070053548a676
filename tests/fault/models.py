"""Models that fail in ways which say something of a row, of the device, or of its memory."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Affine, Numpy, first_time, note

LOOPS = -1  # a gate of `Ledger`


def count(name: str) -> None:
    """Add one to a count that outlives the worker: one byte in a file."""
    with open(note(name), "ab", buffering=0) as file:
        file.write(b".")


class Poison(Numpy):
    """Gives tags back; a row with poison 1 makes the call raise, with 2 it kills the worker."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("poison", "int64")]
    outputs = [bp.Tensor("tag", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if batch["tag"].any():  # not the warm-up
            count(f"calls of {self.name}")
        if (batch["poison"] == 2).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (batch["poison"] == 1).any():
            raise ValueError("a poisonous row")
        return {"tag": batch["tag"]}


class Picky(Numpy):
    """Gives tags back and refuses rows: `how` 1 by their names in the batch, 2 in a list in the
    row's place, 3 by an exception; 4 is a plain exception; 5 breaks the model for good."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("how", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("text", "bytes", (), max_bytes=16)]
    broken = False

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        tags, hows = batch["tag"].tolist(), batch["how"].tolist()
        if any(tags):  # not the warm-up
            count(f"calls of {self.name}")
        self.broken |= 5 in hows
        if self.broken or 4 in hows:
            raise ValueError("a fault of the model")
        if 3 in hows:
            raise refusal(tags[hows.index(3)])
        texts: list[Any] = [str(tag) for tag in tags]
        for row, how in enumerate(hows):
            if how == 1:
                batch.fail(row, refusal(tags[row]))
            elif how == 2:
                texts[row] = refusal(tags[row])
        return {"tag": batch["tag"], "text": texts}


def refusal(tag: int) -> bp.InvalidInput:
    return bp.InvalidInput(f"tag {tag} is not wanted", {"tag": tag})


class Broken(Poison):
    """After a row with poison 3 every later call of this process raises as a CUDA context does."""

    broken = False

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        self.broken |= bool((batch["poison"] == 3).any())
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().infer(batch)


class Greedy(Numpy):
    """Has memory for five rows; for none at all when one of them is marked."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("huge", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("rows", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if batch["tag"].any() and (batch.n > 5 or batch["huge"].any()):
            raise MemoryError(f"no memory for {batch.n} rows")
        return {"tag": batch["tag"], "rows": batch["tag"] * 0 + batch.n}


class Ledger(Numpy):
    """Gives tags back and writes down which worker began with which of them.

    A row with a gate N waits until the test leaves the note `gate-N`; with LOOPS it never ends.
    """

    inputs = [bp.Tensor("row", "int64", (2,))]  # tag, gate
    outputs = [bp.Tensor("tag", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        tags, gates = batch["row"].T.tolist()
        if any(tags):  # not the warm-up
            with open(note("ledger"), "ab", buffering=0) as file:
                file.write(f"{os.getpid()} {' '.join(map(str, tags))}\n".encode())
        for gate in gates:
            while gate and (gate == LOOPS or not note(f"gate-{gate}").exists()):
                if gate != LOOPS:
                    time.sleep(0.001)
        return {"tag": np.array(tags)}


class LoadsTwice(Affine):
    """Two workers load; the next ones cannot before the note `mended twice` is there."""

    def load(self, device: str) -> None:
        early = first_time("first load") or first_time("second load")
        if not early and not note("mended twice").exists():
            raise OSError("the disk is gone")


class Forking(Numpy):
    """Gives tags back, from a worker that has forked: the child of a row whose `how` is 1 raises,
    of 2 returns, of 3 exits by an exception, and of 4 ends as it should."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("how", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("pid", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        for how in batch["how"].tolist():
            child = os.fork() if how else -1
            if child > 0:
                os.waitpid(child, 0)
            elif child == 0 and how == 1:
                raise RuntimeError("in the child")
            elif child == 0 and how == 3:
                raise SystemExit(5)
            elif child == 0 and how == 4:
                os._exit(0)
        return {"tag": batch["tag"], "pid": np.full(batch.n, os.getpid())}
