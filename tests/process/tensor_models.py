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
        words = {b"en": b"hello ", b"de": b"hallo ", b"": b""}
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
