"""Small tokenizers of each kind, made by the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = "the small dog runs and a grüner 🐕 sleeps, 12345 times. " * 8
END = "<|end|>"


def byte_level(**options: Any) -> Any:
    """Byte-level BPE, as GPT-2's and Llama 3's: any bytes have tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", END],
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def byte_fallback() -> Any:
    """Pieces with "▁" for spaces, and a token for each byte, as Llama 2's."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz.,", "▁the", "▁dog", "dog", "▁▁"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "▁")]
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<s>", "</s>"])
    return made


def word_piece() -> Any:
    """Words and their parts, as BERT's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["[UNK]", "[SEP]", "the", "a", "dog", "cat", "##s", "##ing", ".", ",", "'", "n't"]
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[SEP]"])
    return made


def saved(made: Any, folder: Path, **settings: Any) -> Path:
    """The path of its tokenizer.json in a folder. settings: of a tokenizer_config.json beside."""
    path = folder / "tokenizer.json"
    made.save(str(path))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return path
