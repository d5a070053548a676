"""Models for the tests of real processes: numpy, each with one thing to show.

What a row asks for stands in the row itself, so that one pool serves many tests. Rows of
zeros, which is what warm-up sends, ask for nothing special.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp

NOTES = "BATCHPOOL_TEST_NOTES"  # environment: a directory where models leave notes


def note(name: str) -> Path:
    """A file that outlives the worker which touches it."""
    return Path(os.environ[NOTES]) / name


def first_time(name: str) -> bool:
    """True for the first process that asks; how a row tells its first attempt."""
    try:
        note(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def await_gate(gate: int) -> None:
    """Wait until the test leaves the note `gate-N`."""
    while not note(f"gate-{gate}").exists():
        time.sleep(0.002)


class Numpy(bp.Model):
    framework = "numpy"


class Affine(Numpy):
    """y = 2x + 1."""

    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"] * np.float32(2) + np.float32(1)}


class Probe(Numpy):
    """Each row gets its tag back, and learns about the call that it rode in.

    A call takes as long as the longest `seconds` of its rows. One with a row of gate g runs until
    the test leaves the note `gate-g`; 0, the default, is no gate.
    """

    inputs = [
        bp.Tensor("tag", "int64"),
        bp.Tensor("seconds", "float32"),
        bp.Tensor("gate", "int64", default=0),
    ]
    outputs = [bp.Tensor(name, "int64") for name in ("tag", "rows", "call", "pid")]

    def load(self, device: str) -> None:
        self.calls = 0

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        self.calls += 1
        for gate in {*batch["gate"].tolist()} - {0}:
            await_gate(gate)
        seconds = float(batch["seconds"].max())
        if seconds > 0:
            time.sleep(seconds)
        full = {"rows": batch.n, "call": self.calls, "pid": os.getpid()}
        return {"tag": batch["tag"], **{k: np.full(batch.n, v) for k, v in full.items()}}


class Slow(Probe):
    """Another model with the same tensors, for tests that change its settings."""


class Alone(Probe):
    """And one more."""


class Gated(Probe):
    """A Probe whose rows must say which gate they have."""

    inputs = [*Probe.inputs[:2], bp.Tensor("gate", "int64")]


class Scaled(Numpy):
    """y = x * scale + shift, where both are declared parameters; `twice` is another output."""

    inputs = [bp.Tensor("x", "float64", (2,))]
    outputs = [bp.Tensor("y", "float64", (2,)), bp.Tensor("twice", "float64", (2,))]
    parameters = [bp.Tensor("scale", "float64", default=1.0), bp.Tensor("shift", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        scale, shift = batch["scale"], batch["shift"]
        assert scale.shape == shift.shape == (batch.n,)
        y = batch["x"] * scale[:, None] + shift[:, None]
        return {"y": y, "twice": 2 * y}


class Ragged(Numpy):
    """ids [n, 0..64] -> the same plus 1, cut back to each row's own size; and their sum."""

    inputs = [bp.Tensor("ids", "int64", (bp.Dim(64, "length"),), pad=0)]
    outputs = [bp.Tensor("next", "int64", (bp.Dim(64, "length"),)), bp.Tensor("sum", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"next": batch["ids"] + 1, "sum": batch["ids"].sum(axis=1)}


class Echo(Numpy):
    """text -> the same bytes, and their length. A text "gate-N" waits for the note of this name."""

    inputs = [bp.Tensor("text", "bytes", max_bytes=4096)]
    outputs = [bp.Tensor("text", "bytes", max_bytes=4096), bp.Tensor("length", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        text = batch["text"]
        for each in text:
            if each.startswith(b"gate-"):
                await_gate(int(each[5:]))
        return {"text": list(text), "length": np.array([len(t) for t in text], dtype=np.int64)}


class Grow(Numpy):
    """`size` chooses how large the row's outputs are; at most 64 numbers and 64 bytes fit."""

    inputs = [bp.Tensor("size", "int64")]
    outputs = [
        bp.Tensor("numbers", "int32", (bp.Dim(64),)),
        bp.Tensor("blob", "bytes", max_bytes=64),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        sizes = batch["size"].tolist()
        numbers = [np.arange(size, dtype=np.int32) for size in sizes]
        return {"numbers": numbers, "blob": [(b"ab\0" * size)[:size] for size in sizes]}


class Special(Numpy):
    """Numbers that are no numbers, as they come."""

    inputs = [bp.Tensor("x", "float32", (3,))]
    outputs = [bp.Tensor("y", "float32", (3,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return {"y": batch["x"] / batch["x"][:, ::-1]}


class Lies(Numpy):
    """Says in which mapping of this process the input lies, and whether it may be written."""

    inputs = [bp.Tensor("x", "float32", (16,))]
    outputs = [bp.Tensor("mapping", "bytes", max_bytes=256), bp.Tensor("writable", "bool")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        x = batch["x"]
        mapping = mapping_of(x.__array_interface__["data"][0])
        writable = np.full(batch.n, x.flags.writeable)
        return {"mapping": [mapping] * batch.n, "writable": writable}


def mapping_of(address: int) -> str:
    """The name in /proc/self/maps of the mapping that holds an address; "" if it has none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return name[0] if name else ""
    return "nowhere"


class Wide(Numpy):
    """y = 2x + 1 on rows of 64 KiB."""

    inputs = [bp.Tensor("x", "float32", (16384,))]
    outputs = [bp.Tensor("y", "float32", (16384,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"] * np.float32(2) + np.float32(1)}


class Inplace(Numpy):
    """Edits its input, which `writable` allows; the first call with a mark dies after that."""

    writable = True
    inputs = [bp.Tensor("x", "float32", (4,)), bp.Tensor("mark", "int64")]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        x = batch["x"]
        x += 1
        for mark in batch["mark"].tolist():
            if mark and first_time(f"inplace-{mark}"):
                os.kill(os.getpid(), signal.SIGKILL)
        return {"y": x}


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("this exception cannot be pickled")


FAULTS = {
    "raises": 1, "unspeakable": 2, "unpicklable": 3, "long message": 4, "exits": 5,
    "cancelled": 6, "out of memory": 7, "wrong dtype": 8, "object dtype": 9, "short": 10,
    "long": 11, "no output": 12, "another output": 13, "not a dict": 14, "wrong shape": 15,
    "interrupt": 16, "edits its input": 17,
}  # fmt: skip


class Faulty(Numpy):
    """Does wrong what the first row with a `fault` asks for; see FAULTS."""

    inputs = [bp.Tensor("x", "float32"), bp.Tensor("fault", "int64")]
    outputs = [bp.Tensor("y", "float32")]

    def infer(self, batch: bp.Batch) -> Any:
        y = batch["x"] * np.float32(2)
        fault = int(batch["fault"].max())
        raised: dict[int, BaseException] = {
            1: ValueError("this row is bad"),
            2: Unspeakable(),
            3: Unpicklable("cannot travel"),
            4: RuntimeError("x" * 50_000_000 if fault == 4 else ""),
            5: SystemExit(3),
            6: asyncio.CancelledError("nobody waits"),
            7: MemoryError("no room for the batch"),
            16: KeyboardInterrupt(),
        }
        if fault in raised:
            raise raised[fault]
        if fault == 17:
            batch["x"][0] = 1
        answers: dict[int, Any] = {
            8: {"y": y.astype(np.float64)},
            9: {"y": y.astype(object)},
            10: {"y": y[1:]},
            11: {"y": np.repeat(y, 2)},
            12: {},
            13: {"y": y, "z": y},
            14: [y],
            15: {"y": y[:, None]},
        }
        return answers.get(fault, {"y": y})


DEATHS = {"kill": 1, "segfault": 2, "exit": 3, "abort": 4, "hang": 5}


class Deadly(Numpy):
    """Ends its process as the row's `death` asks, but only at the first attempt of that tag.

    A negative `death` strikes at every attempt.
    """

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("death", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("pid", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        for tag, death in zip(batch["tag"].tolist(), batch["death"].tolist(), strict=True):
            if death < 0 or (death and first_time(f"deadly-{tag}")):
                die(abs(death))
        return {"tag": batch["tag"], "pid": np.full(batch.n, os.getpid())}


def die(death: int) -> None:
    if death == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif death == 2:
        ctypes.string_at(0)
    elif death == 3:
        os._exit(0)
    elif death == 4:
        os.abort()
    while True:
        time.sleep(1)


class LoadRaises(Affine):
    def load(self, device: str) -> None:
        raise FileNotFoundError("weights.bin is not there")


class LoadExits(Affine):
    def load(self, device: str) -> None:
        os._exit(3)


class LoadHangs(Affine):
    def load(self, device: str) -> None:
        die(DEATHS["hang"])


class LoadWaits(Affine):
    """Loads once the test leaves the note `load`."""

    def load(self, device: str) -> None:
        while not note("load").exists():
            time.sleep(0.005)


class LoadsOnce(Affine):
    """Loads the first time, and then not before the note `mended` is there."""

    def load(self, device: str) -> None:
        tries = 1
        while not first_time(f"load-{tries}"):
            tries += 1
        if tries > 1 and not note("mended").exists():
            raise OSError("the disk is gone")


class OneLoadFails(Affine):
    """The second worker of two cannot load."""

    def load(self, device: str) -> None:
        if not first_time("load"):
            raise RuntimeError("only one of us fits")


class WarmUpFails(Affine):
    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"].astype(np.float64)}


class Big(Numpy):
    """A row of 1 MiB each way."""

    inputs = [bp.Tensor("x", "float32", (262144,))]
    outputs = [bp.Tensor("y", "float32", (262144,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": np.array(batch["x"])}


class Environment(Numpy):
    """A model that returns its worker's settings of devices and threads."""

    inputs = [bp.Tensor("name", "bytes", max_bytes=64)]
    outputs = [bp.Tensor("value", "bytes", max_bytes=256)]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"value": [os.environ.get(n.decode(), "(unset)") for n in batch["name"]]}


class Broad(Numpy):
    """So many tensors that what is to be known of it fills no packet; y is their sum."""

    inputs = [bp.Tensor("input" * 25 + str(i), "float32") for i in range(900)]
    outputs = [bp.Tensor("y", "float32")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": sum(batch.values())}
