"""Models that keep a GPU busy: an image network and a text encoder, with random weights.

    batchpool serve --model bench.support.gpu_models:ResNet50
    batchpool serve --model bench.support.gpu_models:Encoder

Weights come from a fixed seed and are made on the CPU, so that all workers answer alike. On a GPU
they compute in half precision, on a CPU in single precision.
"""

from __future__ import annotations

import torch

import batchpool as bp

_SEED = 1234
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TOKENS, _WIDTH, _WORDS = 64, 384, 30_522


def _dtype_on(device: str) -> torch.dtype:
    return torch.float16 if device.startswith("cuda") else torch.float32


class ResNet50(bp.Model):
    """`image` [n, 3, 224, 224] uint8 -> `logits` [n, 1000] float32.

    Conversion and normalisation happen on the device. Needs torchvision.
    """

    name = "resnet50"
    cuda_graphs = True
    inputs = [bp.Tensor("image", "uint8", (3, 224, 224))]
    outputs = [bp.Tensor("logits", "float32", (1000,))]

    def load(self, device: str) -> None:
        from torchvision.models import resnet50
        from torchvision.models.resnet import Bottleneck

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            net = resnet50(weights=None)
        # As a trained network's: otherwise each block adds more than came in, and the last ones
        # leave the range of half precision.
        for part in net.modules():
            if isinstance(part, Bottleneck):
                torch.nn.init.constant_(part.bn3.weight, 0.25)
        self._dtype = dtype = _dtype_on(device)
        self._net = net.to(device, dtype, memory_format=torch.channels_last).eval()
        mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (_MEAN, _STD))
        self._scale = (1 / (255 * std)).to(device, dtype)
        self._shift = (-mean / std).to(device, dtype)

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        x = batch["image"].to(self._dtype, memory_format=torch.channels_last)
        x.mul_(self._scale).add_(self._shift)
        logits: torch.Tensor = self._net(x)
        return {"logits": logits.float()}


class Encoder(bp.Model):
    """`ids` [n, 64] int64 below 30,522 -> `embedding` [n, 384] float32, the mean over the tokens.

    Six layers of a transformer, 384 wide, 12 heads.
    """

    name = "encoder"
    cuda_graphs = True
    inputs = [bp.Tensor("ids", "int64", (_TOKENS,))]
    outputs = [bp.Tensor("embedding", "float32", (_WIDTH,))]

    def load(self, device: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            words = torch.nn.Embedding(_WORDS, _WIDTH)
            places = torch.randn(_TOKENS, _WIDTH)
            layer = torch.nn.TransformerEncoderLayer(
                _WIDTH, 12, 4 * _WIDTH, activation="gelu", batch_first=True
            )
            layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        dtype = _dtype_on(device)
        self._words = words.to(device, dtype)
        self._places = places.to(device, dtype)
        self._layers = layers.to(device, dtype).eval()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        x = self._words(batch["ids"]) + self._places
        y: torch.Tensor = self._layers(x)
        return {"embedding": y.mean(dim=1).float()}
