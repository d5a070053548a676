"""Models with a stage after `infer`, whose rows say in which stage they make which trouble.

Texts are as in tests/process/staged_models.py. What happens in postprocess besides: "post invalid",
"post refused", "post value" and "post wrong" are exceptions in the row's place, "post long" is an
output that does not fit.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Numpy
from tests.process.staged_models import _FATES, Staged, meet, version, write_batch_down, write_down


class Answered(Staged):
    """The answers of `Staged` by three stages: `infer` only cuts the sum into its parts."""

    predictions = [
        bp.Tensor("parts", "int64", (bp.Dim(64),)),
        bp.Tensor("by", "int64", (2,)),
        *("text", "tag", "from"),
    ]
    outputs = [
        bp.Tensor("total", "int64"),
        bp.Tensor("tag", "int64"),
        bp.Tensor("pids", "int64", (3,)),
        bp.Tensor("versions", "int64", (3,)),
        bp.Tensor("echo", "bytes", max_bytes=64),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        made = super().infer(batch)
        assert made["total"].shape == (batch.n,)
        sizes = batch.sizes["ids"][:, 0].tolist()
        parts = [ids[:size].astype(np.int64) for ids, size in zip(batch["ids"], sizes, strict=True)]
        return {"parts": parts, "by": np.full((batch.n, 2), (os.getpid(), self.version))}

    def load_postprocess(self) -> None:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "a postprocessing worker sees no GPU"
        self.stage, self.version = "post", version()

    def postprocess(self, batch: bp.Batch) -> dict[str, Any]:
        assert self.stage == "post"
        assert set(batch) == {"parts", "by", "text", "tag", "from"}
        write_batch_down("post", batch)
        echoes: list[Any] = batch["text"].tolist()
        for row, text in enumerate(batch["text"].tolist()):
            stage, what, number = (*text.split(), b"", b"", b"0")[:3]
            if stage != b"post":
                continue
            if what == b"invalid":
                echoes[row] = bp.InvalidInput("no such answer")
            elif what == b"refused":
                batch.fail(row, bp.InvalidInput("not this answer", {"at": 7}))
            elif what == b"value":
                echoes[row] = ValueError("too many values")
            elif what == b"wrong":
                echoes[row] = KeyError("label")
            elif what == b"long":
                echoes[row] = b"x" * 65
            else:
                meet(_FATES.get(what, 0), int(number or 0))
        own = np.full((batch.n, 2), (os.getpid(), self.version))
        pids, versions = (
            np.stack([batch["from"][:, k], batch["by"][:, k], own[:, k]], axis=1) for k in (0, 1)
        )
        total = batch["parts"].sum(axis=1)
        return {"total": total, "tag": batch["tag"], "pids": pids, "versions": versions,
                "echo": echoes}  # fmt: skip

    def unload_postprocess(self) -> None:
        assert self.stage == "post"
        write_down("ends", ["post", os.getpid()])


class Labelled(Numpy):
    """A classifier that postprocesses only: the label of the largest number."""

    inputs = [bp.Tensor("x", "float32", (3,))]
    predictions = [bp.Tensor("logits", "float32", (3,))]
    outputs = [bp.Tensor("label", "bytes", max_bytes=8), bp.Tensor("score", "float32")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"logits": batch["x"] * 2}

    def load_postprocess(self) -> None:
        self.labels = ["cat", "dog", "cow"]

    def postprocess(self, batch: bp.Batch) -> dict[str, Any]:
        best = batch["logits"].argmax(axis=1)
        return {"label": [self.labels[i] for i in best], "score": batch["logits"].max(axis=1)}


class Unfit(Answered):
    """Its postprocess cannot take the warm-up row."""

    def postprocess(self, batch: bp.Batch) -> dict[str, Any]:
        raise RuntimeError("never")
