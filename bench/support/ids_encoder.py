"""A text encoder that reads token ids of many lengths, with random weights.

The shape of all-MiniLM-L6-v2: six layers, 384 wide, 12 heads; the mean over a row's tokens, of
length one. On a GPU it computes in half precision.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import batchpool as bp

_SEED = 1234
_WORDS = 30_522
TOKENS_MOST = 128


def make_encoder(device: str) -> Any:
    """The network on a device, in half precision on a GPU."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        config = BertConfig(
            vocab_size=_WORDS,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        )
        encoder: Any = BertModel(config, add_pooling_layer=False)
    dtype = torch.float16 if device.startswith("cuda") else torch.float32
    return encoder.to(device, dtype).eval()


def embed(encoder: Any, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Vectors [n, 384] float32 of ids [n, tokens], of which each row has its own length [n, 1]."""
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths
    # A mask of four dimensions is taken as it is: for one of two the library reads its values.
    pairs = mask[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
    hidden = encoder(input_ids=ids, attention_mask=pairs).last_hidden_state
    total = (hidden * mask[:, :, None]).sum(dim=1, dtype=torch.float32)
    return torch.nn.functional.normalize(total, dim=1)


class IdsEncoder(bp.Model):
    """`ids` [n, 1..128] int64 -> `embedding` [n, 384] float32, by CUDA graphs of many shapes."""

    name = "ids_encoder"
    cuda_graphs = True
    inputs = [bp.Tensor("ids", "int64", (bp.Dim(TOKENS_MOST, "tokens"),))]
    outputs = [bp.Tensor("embedding", "float32", (384,))]

    def load(self, device: str) -> None:
        self._encoder = make_encoder(device)

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        ids = batch["ids"]
        lengths = torch.as_tensor(batch.sizes["ids"], device=ids.device)
        return {"embedding": embed(self._encoder, ids, lengths)}


class EagerIdsEncoder(IdsEncoder):
    """An `IdsEncoder` without graphs: its kernels are started one by one."""

    name = "eager_ids_encoder"
    cuda_graphs = False


def make_rows(n: int) -> list[npt.NDArray[np.int64]]:
    """Token ids of n texts, whose lengths are distributed as those of short passages: log-normal,
    4 to 120 words and two marks, mean 29."""
    draw = random.Random(_SEED)
    lengths = [int(min(120, max(4, draw.lognormvariate(3.0, 0.8)))) + 2 for _ in range(n)]
    rng = np.random.default_rng(_SEED)
    return [rng.integers(1000, _WORDS, length) for length in lengths]
