"""The models, as functions of float32 [n, 512] to float32 [n, 512], for servers of any kind.

The MLP has the weights of batchpool.examples.mlp, and like it half precision on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WIDTH = 512
_HIDDEN = 2048
_SEED = 1234
_MOST_ROWS = 1024

Model = Callable[[Any], Any]


def make_model(name: str, device: str) -> Model:
    return _affine if name == "affine" else _mlp(device)


def rows_of(bodies: Sequence[bytes]) -> Any:
    return np.frombuffer(b"".join(bodies), dtype=np.float32).reshape(-1, WIDTH)


def bodies_of(rows: Any) -> list[bytes]:
    return [row.tobytes() for row in rows]


def _affine(x: Any) -> Any:
    return x * 2 + 1


def _mlp(device: str) -> Model:
    import torch

    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, _HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(_HIDDEN, _HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(_HIDDEN, WIDTH),
        ).eval()

    def on_cpu(x: Any) -> Any:
        with torch.inference_mode():
            return layers(torch.from_numpy(np.require(x, requirements="W"))).numpy()

    if device == "cpu":
        return on_cpu
    layers.to(device, torch.float16)
    pinned = torch.empty((_MOST_ROWS, WIDTH), pin_memory=True)

    def on_gpu(x: Any) -> Any:
        with torch.inference_mode():
            staged = pinned[: len(x)]
            staged.numpy()[:] = x
            there = staged.to(device, non_blocking=True)
            return layers(there.half()).float().cpu().numpy()

    for n in (1, 64, 256):
        on_gpu(np.zeros((n, WIDTH), dtype=np.float32))
    return on_gpu
