"""Models for the tests of what tensors and parameters may be."""

from __future__ import annotations

from typing import Any

import batchpool as bp


class Greet(bp.Model):
    """Says a word to each name in the row's language, and counts its letters in Python lists."""

    framework = "numpy"
    inputs = [bp.Tensor("name", "bytes", max_bytes=16)]
    outputs = [
        bp.Tensor("said", "bytes", max_bytes=64),
        bp.Tensor("letters", "int64"),
        bp.Tensor("codes", "uint8", (bp.Dim(16),)),
    ]
    parameters = [
        bp.Tensor("language", "bytes", max_bytes=8, default="en"),
        bp.Tensor("times", "int64", default=1),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        words = {b"en": b"hello ", b"de": b"hallo ", b"": b"", b"l\0": b"l\0 "}
        said = [
            words[language] * int(times) + name
            for name, language, times in zip(
                batch["name"], batch["language"], batch["times"], strict=True
            )
        ]
        names = list(batch["name"])
        return {
            "said": said,
            "letters": [len(name) for name in names],
            "codes": [list(name) for name in names],
        }


class Boxes(bp.Model):
    """Boxes of a row, doubled; their labels; and the sum of all that the model saw in the row."""

    framework = "numpy"
    inputs = [
        bp.Tensor("boxes", "float32", (bp.Dim(8, "box"), 4), pad=-1),
        bp.Tensor("labels", "bytes", (bp.Dim(8, "box"),), max_bytes=8),
    ]
    outputs = [
        bp.Tensor("doubled", "float32", (bp.Dim(8), 4), pad=-5),
        bp.Tensor("named", "bytes", (bp.Dim(8),), max_bytes=16),
        bp.Tensor("count", "int64"),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        counts = batch.sizes["boxes"][:, 0].tolist()
        rows = zip(batch["boxes"], batch["labels"], counts, strict=True)
        rest = [boxes[n:] for boxes, n in zip(batch["boxes"], counts, strict=True)]
        assert all((boxes == -1).all() for boxes in rest)  # beyond its size a row holds the pad
        cut = [
            (boxes[:n] * 2, [b"is " + label for label in labels[:n]]) for boxes, labels, n in rows
        ]
        return {
            "doubled": [doubled for doubled, _ in cut],
            "named": [named for _, named in cut],
            "count": counts,
        }


class Masked(bp.Model):
    """The sum of a row's ids where the mask is 1, and of the mask."""

    framework = "numpy"
    inputs = [
        bp.Tensor("ids", "int64", (bp.Dim(8, "token"),)),
        bp.Tensor("mask", "int64", (bp.Dim(8, "token"),), default=1),
    ]
    outputs = [bp.Tensor("sum", "int64"), bp.Tensor("ones", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {
            "sum": (batch["ids"] * batch["mask"]).sum(axis=1),
            "ones": batch["mask"].sum(axis=1),
        }


class Animals(bp.Model):
    """The scores of three animals, which come as they are, and twice of them in half precision."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (3,))]
    outputs = [
        bp.Tensor("score", "float32", (3,), labels=["cat", "dog", "Kühe"]),
        bp.Tensor("half", "float16", (3,)),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"score": batch["x"], "half": (batch["x"] * 2).astype("float16")}
