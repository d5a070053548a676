"""A process that uploads JPEGs over HTTP, or decodes them as the pool's stage does.

    python -m bench.load.picture_sender FOLDER

A child that the run tells what to do. FOLDER holds the pictures, as 0.jpg and on, and the
weights and labels of a ResNet-50 of which each picture has a class of its own (bench/pictures.py).
`upload`: callers in a closed loop; the best label of each answer must be the picture's number.
`decode`: the stage `preprocess` of the model alone.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import batchpool as bp
from bench.load.closed_loop import ClosedLoop
from bench.support.children import obey, wait_until

_JPEG = {"Content-Type": "image/jpeg"}
_BATCH = 8  # pictures of one call of the stage


def best_label(head: bytes, body: bytes) -> str:
    """The first label of an answer in plain JSON."""
    label: str = np.ravel(json.loads(body)["label"])[0]
    return label


def check(row: int, label: str) -> None:
    if label != str(row):
        raise ValueError(f"picture {row} was answered with the label {label}")


def upload(pictures: list[bytes], message: dict[str, Any]) -> dict[str, Any]:
    loop = ClosedLoop(len(pictures), message["at_once"], message["seconds"], check)
    path = "/v2/models/resnet50/infer"
    wait_until(message["start_ns"])
    return uvloop.run(loop.run_http(message["port"], path, _JPEG, pictures, best_label))


class Decoder:
    """The stage in this process, loaded at its first use."""

    def __init__(self, folder: Path, pictures: list[bytes]) -> None:
        from batchpool.model import make_instance
        from batchpool.models.image_classifier import ImageClassifier

        options = {"path": folder / "resnet50.safetensors", "labels": folder / "labels.txt"}
        self._model: Any = make_instance(ImageClassifier, "resnet50", options)
        self._model.load_preprocess()
        self._pictures = pictures

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """Decode for so long; answers the number of pictures."""
        until_ns = message["start_ns"] + int(message["seconds"] * 1e9)
        done = 0
        wait_until(message["start_ns"])
        batches = itertools.cycle(
            bp.Batch(_BATCH, {"image": np.array(self._pictures[at : at + _BATCH], object)})
            for at in range(0, len(self._pictures), _BATCH)
        )
        while time.monotonic_ns() < until_ns:
            done += len(self._model.preprocess(next(batches))["pixels"])
        return {"pictures": done}


def read_pictures(folder: Path) -> list[bytes]:
    files = sorted(folder.glob("*.jpg"), key=lambda file: int(file.stem))
    return [file.read_bytes() for file in files]


def main() -> None:
    folder = Path(sys.argv[1])
    pictures = read_pictures(folder)
    decoder: list[Decoder] = []

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "upload":
            return upload(pictures, message)
        if not decoder:
            decoder.append(Decoder(folder, pictures))
        return decoder[0].run(message) if message["seconds"] else {}

    obey(answer)


if __name__ == "__main__":
    main()
