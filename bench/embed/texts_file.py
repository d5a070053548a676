"""The texts of a run and their right vectors, in a folder that all processes read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
COSINE = 0.999  # the least of a right vector to that of `encode`; half precision is above it


class WrongVector(Exception):
    """A vector that is not that of its text."""


@dataclass(frozen=True)
class Known:
    """texts: as bytes. right: [n, 384], of length one."""

    texts: list[bytes]
    right: Vectors

    @classmethod
    def read(cls, folder: Path) -> Known:
        texts = [text.encode() for text in json.loads((folder / "texts.json").read_text())]
        return cls(texts, np.load(folder / "right.npy"))

    def write(self, folder: Path) -> None:
        words = [text.decode() for text in self.texts]
        (folder / "texts.json").write_text(json.dumps(words), encoding="utf-8")
        np.save(folder / "right.npy", self.right)

    def check(self, row: int, vector: Any) -> None:
        """Raise WrongVector unless it is the vector of text `row`."""
        self.check_all([row], np.asarray(vector, np.float32)[None])

    def check_all(self, rows: list[int], vectors: Vectors) -> None:
        """Raise WrongVector unless these are the vectors [n, 384] of these texts."""
        if vectors.shape != (len(rows), self.right.shape[1]):
            raise WrongVector(f"vectors of shape {vectors.shape} for {len(rows)} texts")
        cosines = (vectors * self.right[rows]).sum(axis=1)
        cosines /= np.linalg.norm(vectors, axis=1)
        worst = int(cosines.argmin())
        if not cosines[worst] > COSINE:
            raise WrongVector(f"text {rows[worst]}: cosine {cosines[worst]:.5f}")
