"""The text encoder of the examples with random weights, where its package is not installed.

Architecture and work are those of all-MiniLM-L6-v2: six layers, 384 wide, 12 heads. Where no
tokenizer is given, words become numbers by their checksum, one token each; embeddings mean nothing,
but different texts have different ones.
"""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

from batchpool.examples.minilm import TOKENS_MOST, MiniLM

_SEED = 1234
_WORDS = 30_522
_FIRST, _LAST, _SPECIAL = 101, 102, 1000  # tokens that every text begins and ends with


class RandomMiniLM(MiniLM):
    """As MiniLM, without its weights. tokenizer: the path of a tokenizer.json."""

    name = "minilm"

    def __init__(self, tokenizer: str = "", cuda_graphs: bool = True) -> None:
        super().__init__(cuda_graphs=cuda_graphs)
        self._path = tokenizer

    def load_preprocess(self) -> None:
        self._tokenizer: Any = _Words()
        if self._path:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self._path)
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(TOKENS_MOST)

    def load(self, device: str) -> None:
        import torch
        from transformers import BertConfig, BertModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            encoder: Any = BertModel(
                BertConfig(
                    vocab_size=_WORDS,
                    hidden_size=384,
                    num_hidden_layers=6,
                    num_attention_heads=12,
                    intermediate_size=1536,
                ),
                add_pooling_layer=False,
            )
        self._place(encoder, device)


class _Words:
    """The part of a tokenizer that MiniLM uses."""

    def encode_batch_fast(self, texts: list[str]) -> list[SimpleNamespace]:
        words = [text.split()[: TOKENS_MOST - 2] for text in texts]
        return [SimpleNamespace(ids=[_FIRST, *map(_token, each), _LAST]) for each in words]


def _token(word: str) -> int:
    return _SPECIAL + zlib.crc32(word.encode()) % (_WORDS - _SPECIAL)
