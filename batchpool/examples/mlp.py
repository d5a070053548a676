"""A torch model of three layers, 512-2048-2048-512, with random weights from a fixed seed.

    pip install 'batchpool[torch]'
    batchpool serve --model batchpool.examples.mlp:MLP

    python3 -c 'print({"inputs": [{"name": "x", "shape": [1, 512], "datatype": "FP32",
      "data": [0.5] * 512}]})' | tr "'" '"' |
      curl -s localhost:8000/v2/models/mlp/infer -d @-

On a GPU it computes in half precision, on a CPU in single precision. Inputs and outputs are
float32, 2 KiB a row each; they are converted on the device. All workers have the same weights, so
a row has one result on all of them.
"""

from __future__ import annotations

import torch

import batchpool as bp

_WIDTH = 512
_HIDDEN = 2048
_SEED = 1234


class MLP(bp.Model):
    """`x` [n, 512] float32 -> `y` [n, 512] float32."""

    name = "mlp"
    framework = "torch"
    cuda_graphs = True
    inputs = [bp.Tensor("x", "float32", (_WIDTH,))]
    outputs = [bp.Tensor("y", "float32", (_WIDTH,))]

    def load(self, device: str) -> None:
        # Weights are made on the CPU with a seed of their own, so that they are equal everywhere.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            layers = torch.nn.Sequential(
                torch.nn.Linear(_WIDTH, _HIDDEN),
                torch.nn.ReLU(),
                torch.nn.Linear(_HIDDEN, _HIDDEN),
                torch.nn.ReLU(),
                torch.nn.Linear(_HIDDEN, _WIDTH),
            )
        self._dtype = torch.float16 if device.startswith("cuda") else torch.float32
        self._layers = layers.to(device, self._dtype).eval()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        y: torch.Tensor = self._layers(batch["x"].to(self._dtype))
        return {"y": y.float()}
