"""A model with a stage before `infer`, whose rows say in which stage they make which trouble.

A text is words: a stage ("pre", "run" or "post") and what happens there, as "run kill". What
happens:

    kill     the worker dies          once N   the worker dies the first time that it meets N
    raise    the batch fails          gate N   the batch waits until the note `gate-N` is there
    invalid, refused, wrong           (pre) an exception in the row's place
    bug, raised                       (pre) a ValueError, or a bp.InvalidInput, is raised
    long     (pre) a feature that does not fit

Every batch leaves a line with its worker's pid and its tags in the note of its stage.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Numpy, first_time, note

_KILL, _RAISE, _ONCE, _GATE = range(1, 5)
_FATES = {b"kill": _KILL, b"raise": _RAISE, b"once": _ONCE, b"gate": _GATE}


def meet(fate: int, number: int) -> None:
    """Let happen to the running batch what one of its rows asks for."""
    if fate == _KILL or (fate == _ONCE and first_time(f"once-{number}")):
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == _RAISE:
        raise RuntimeError("this row raises")
    while fate == _GATE and not note(f"gate-{number}").exists():
        time.sleep(0.002)


def write_down(stage: str, words: list[Any]) -> None:
    with open(note(f"batches-{stage}"), "a", encoding="utf-8") as lines:
        print(*words, file=lines)


def write_batch_down(stage: str, batch: bp.Batch) -> None:
    write_down(stage, [f"pid={os.getpid()}", *batch["tag"].tolist()])


def version() -> int:
    return int(note("version").read_text()) if note("version").exists() else 0


class Staged(Numpy):
    """total: of the numbers of the text's bytes. pids: of both workers. seen: what they are."""

    inputs = [
        bp.Tensor("text", "bytes", (), max_bytes=64),
        bp.Tensor("tag", "int64", (), default=0),
    ]
    features = [
        bp.Tensor("ids", "int32", (bp.Dim(64),)),
        bp.Tensor("fate", "int64", (2,)),
        bp.Tensor("from", "int64", (2,)),
        "tag",
    ]
    outputs = [
        bp.Tensor("total", "int64"),
        bp.Tensor("tag", "int64"),
        bp.Tensor("pids", "int64", (2,)),
        bp.Tensor("versions", "int64", (2,)),
    ]

    def load_preprocess(self) -> None:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "a preprocessing worker sees no GPU"
        self.stage, self.version = "pre", version()

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        assert self.stage == "pre"
        assert set(batch) == {"text", "tag"}
        write_batch_down("pre", batch)
        ids: list[Any] = []
        fates = np.zeros((batch.n, 2), np.int64)
        for row, text in enumerate(batch["text"].tolist()):
            ids.append(np.frombuffer(text, np.uint8).astype(np.int32))
            stage, what, number = (*text.split(), b"", b"", b"0")[:3]
            fate = _FATES.get(what, 0)
            if stage == b"post":
                continue
            if stage == b"run":
                fates[row] = fate, int(number or 0)
            elif what == b"invalid":
                ids[row] = ValueError("not a text")
            elif what == b"refused":
                batch.fail(row, bp.InvalidInput("not this text", {"at": 4}))
            elif what == b"wrong":
                ids[row] = KeyError("vocabulary")
            elif what == b"bug":
                raise ValueError("a bug")
            elif what == b"raised":
                raise bp.InvalidInput("not this one")
            elif what == b"long":
                ids[row] = np.zeros(65, np.int32)
            elif stage == b"pre":
                meet(fate, int(number or 0))
        origin = np.full((batch.n, 2), (os.getpid(), self.version))
        return {"ids": ids, "fate": fates, "from": origin}

    def unload_preprocess(self) -> None:
        assert self.stage == "pre"
        write_down("ends", ["pre", os.getpid()])

    def load(self, device: str) -> None:
        self.stage, self.version = "run", version()

    def unload(self) -> None:
        assert self.stage == "run"
        write_down("ends", ["run", os.getpid()])

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        assert self.stage == "run"
        assert set(batch) == {"ids", "fate", "from", "tag"}, "what only preprocess reads stays away"
        write_batch_down("run", batch)
        for fate, number in batch["fate"].tolist():
            meet(fate, number)
        own = np.full((batch.n, 2), (os.getpid(), self.version))
        both = [np.stack([batch["from"][:, k], own[:, k]], axis=1) for k in (0, 1)]
        total = batch["ids"].sum(axis=1, dtype=np.int64)
        return {"total": total, "tag": batch["tag"], "pids": both[0], "versions": both[1]}


class Together(Staged):
    """As Staged, for workers on the CPU, which run both stages themselves."""

    name = "together"

    def load_preprocess(self) -> None:
        self.stage, self.version = "pre", version()


class Unfit(Together):
    """Its preprocess refuses the warm-up row."""

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        return {"ids": [ValueError("never")] * batch.n, "fate": np.zeros((batch.n, 2), np.int64),
                "from": np.zeros((batch.n, 2), np.int64)}  # fmt: skip
