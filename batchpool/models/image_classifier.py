"""Labels of pictures by a classifier of torchvision, from a file of weights.

    pip install 'batchpool[image-classifier]'
    batchpool serve --model image_classifier:resnet50.safetensors --option labels=labels.txt

    with bp.Client() as pool:
        pool.infer("resnet50", image=[open("cat.jpg", "rb").read()])["label"]  # [[b"tabby", ...]]

JPEG, PNG and WebP are turned upright, resized and cropped as torchvision's presets for classifiers
do, in the stage `preprocess`. A picture that cannot be decoded is refused, for its row alone.
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import batchpool as bp
from batchpool.models.bounds import AtLeastOne, AtLeastZero
from batchpool.models.decoding_memory import DecodingMemory
from batchpool.models.extras import check_trust, extra, file_at, lines_of
from batchpool.models.files.weight_files import check_safetensors
from batchpool.models.pictures import use_picture
from batchpool.models.tokens import Dtype, dtype_on

if TYPE_CHECKING:
    import torch

_IMAGENET = 1000  # classes
_LABEL_BYTES = 128  # of the labels of ImageNet
_LAST_LAYER = re.compile(r"(fc|head|heads\.head|classifier(\.\d+)?)\.bias")


class ImageClassifier(bp.Model):
    """`image` [n] bytes -> `label` [n, k] bytes, `score` [n, k] float32, the best first.

    path: the weights, as safetensors; with trust also what torch.save has written. architecture:
    of torchvision, as "resnet50"; "" for the beginning of the file's name. labels: a file with one
    label a line; left out, those of ImageNet for 1000 classes, else numbers. top_k: k, at most the
    number of classes. resize, crop: pixels of the shorter side and of the square cut out of it.
    mean, std: of the training, for values of 0 to 1. max_pixels, max_bytes: of a picture.
    max_decoding_mib: the memory that the threads of a process take for pictures that they decode;
    large ones wait for each other. threads: that decode, 0 for the process's share of the cores.
    dtype: of the weights; "auto" is half
    precision on a GPU. Raises RuntimeError without the extra,
    FileNotFoundError, and ValueError for weights without trust or of another architecture.
    """

    name = "image_classifier"

    def __init__(
        self,
        path: Path,
        architecture: str = "",
        labels: Path | None = None,
        top_k: AtLeastOne = 5,
        resize: AtLeastOne = 256,
        crop: AtLeastOne = 224,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        max_pixels: AtLeastOne = 32_000_000,
        max_bytes: AtLeastOne = 4 << 20,
        max_decoding_mib: AtLeastOne = 1024,
        threads: AtLeastZero = 0,
        dtype: Dtype = "auto",
        trust: bool = False,
    ) -> None:
        self._path = path = file_at(path)
        self._architecture = architecture or path.name.partition(".")[0].partition("-")[0]
        self._resize, self._crop, self._mean, self._std = resize, crop, mean, std
        self._max_pixels, self._threads, self._dtype = max_pixels, threads, dtype
        self._max_decoding_mib = max_decoding_mib
        self._labels = lines_of(labels, "labels") if labels else []
        if path.suffix != ".safetensors":
            check_trust(trust, f"{path}, which is no safetensors,")
        told = _classes_of(path)
        if told:
            self._check_labels(told)
        classes = told or len(self._labels) or _IMAGENET
        self._top_k = min(top_k, classes)
        longest = max((len(label.encode()) for label in self._labels), default=_LABEL_BYTES)
        self.inputs = [bp.Tensor("image", "bytes", (), max_bytes=max_bytes)]
        self.features = [bp.Tensor("pixels", "uint8", (3, crop, crop))]
        self.outputs = [
            bp.Tensor("label", "bytes", (self._top_k,), max_bytes=max(1, longest)),
            bp.Tensor("score", "float32", (self._top_k,)),
        ]

    def _check_labels(self, classes: int) -> None:
        if self._labels and len(self._labels) != classes:
            raise ValueError(
                f"option labels names a file of {len(self._labels)} lines, and {self._path} has"
                f" {classes} classes; a line for each class was expected"
            )

    def load_preprocess(self) -> None:
        with extra("image-classifier"):
            import torchvision.transforms.v2  # noqa: F401 - here, since it takes seconds
        threads = self._threads or int(os.environ.get("OMP_NUM_THREADS") or 1)
        self._memory = DecodingMemory(self._max_decoding_mib << 20)
        self._decoders = ThreadPoolExecutor(threads, "decode")

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        return {"pixels": list(self._decoders.map(self._pixels, batch["image"]))}

    def unload_preprocess(self) -> None:
        self._decoders.shutdown()

    def load(self, device: str) -> None:
        with extra("image-classifier"):
            import torch
            from safetensors.torch import load_file
            from torchvision import models
        if self._path.suffix == ".safetensors":
            weights = load_file(str(self._path))
        else:
            weights = torch.load(self._path, map_location="cpu", weights_only=True)
        if self._architecture not in models.list_models(models):
            near = difflib.get_close_matches(self._architecture, models.list_models(models), n=3)
            raise ValueError(
                f"torchvision has no classifier {self._architecture!r}{_or(near)}; set the option"
                f' architecture, as architecture="resnet50", or let the name of the file begin'
                " with it"
            )
        classes = len(weights[_last_layer(weights)])
        self._check_labels(classes)
        network = models.get_model(self._architecture, weights=None, num_classes=classes)
        network.load_state_dict(weights)
        dtype = getattr(torch, dtype_on(device, self._dtype, {}))
        self._network = network.to(device, dtype).eval()
        self._dtype_of_weights = dtype
        if not self._labels and classes == _IMAGENET:
            self._labels = models.get_model_weights("resnet50").DEFAULT.meta["categories"]
        labels = self._labels or [str(number) for number in range(classes)]
        self._encoded = np.array([label.encode() for label in labels], object)

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        scores = self._scores(batch["pixels"])
        best = scores.topk(self._top_k, dim=1)
        return {"label": self._encoded[best.indices.cpu().numpy()], "score": best.values}

    def warm_up_row(self) -> dict[str, bytes]:
        from PIL import Image

        written = io.BytesIO()
        Image.new("RGB", (2 * self._resize, self._resize)).save(written, "JPEG")
        return {"image": written.getvalue()}

    def _pixels(self, raw: bytes) -> Any:
        """The pixels that the network sees, uint8 [3, crop, crop], or why there are none."""
        from torchvision.transforms.v2 import functional

        try:
            resized = use_picture(
                raw,
                self._max_pixels,
                self._memory,
                lambda picture: functional.resize(picture, [self._resize]),
            )
        except bp.InvalidInput as error:
            # Their frames hold the picture, as far as it was decoded.
            error.__traceback__ = error.__context__ = None
            return error
        cropped = functional.center_crop(resized, [self._crop, self._crop])
        return functional.pil_to_tensor(cropped).numpy()

    def _scores(self, pixels: torch.Tensor) -> torch.Tensor:
        """Softmax over the classes, [n, classes], of uint8 [n, 3, crop, crop]."""
        import torch
        from torchvision.transforms.v2 import functional

        scaled = functional.to_dtype(pixels, torch.float32, scale=True)
        normal = functional.normalize(scaled, list(self._mean), list(self._std))
        found: torch.Tensor = self._network(normal.to(self._dtype_of_weights)).float()
        return found.softmax(dim=1)


def _or(names: list[str]) -> str:
    return f" (near it: {', '.join(names)})" if names else ""


def _classes_of(path: Path) -> int:
    """The number of classes that a file of safetensors tells; 0 for any other file."""
    if path.suffix != ".safetensors":
        return 0
    with extra("image-classifier"):
        from safetensors import safe_open
    check_safetensors(path)
    with safe_open(str(path), framework="numpy") as file:
        return int(file.get_slice(_last_layer(file.keys())).get_shape()[0])


def _last_layer(names: Iterable[str]) -> str:
    """The bias with one number for each class, among the names of all weights."""
    try:
        return max(name for name in names if _LAST_LAYER.fullmatch(name))
    except ValueError:
        raise ValueError(
            "these are not the weights of a classifier of torchvision: none is named fc.bias,"
            " head.bias, heads.head.bias or classifier.bias"
        ) from None
