"""Small folders of Sentence Transformers and of transformers, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_WORDS = "[PAD] [UNK] [CLS] [SEP] the a small dog cat runs sleeps fast query : ##s ##ing good bad"
TEXTS = [
    "the small dog runs",
    "",
    "a cat sleeps " * 40,
    "good",
    "the dogs running fast, bad cats",
    "unknown wörds",
    *("a cat " * n for n in range(1, 60, 7)),
]


def _settings() -> Any:
    import torch
    from transformers import BertConfig

    torch.manual_seed(7)
    return BertConfig(
        vocab_size=len(_WORDS.split()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
    )


def tokenizer() -> Any:
    """A fast tokenizer of the words of `_WORDS`, for texts of at most 32 tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(_WORDS.split())}
    found = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=found,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=32,
    )


def classifier(folder: Path, **settings: Any) -> Path:
    """A sequence classifier with the labels NO, MAYBE and YES, unless `settings` say others."""
    from transformers import BertForSequenceClassification

    config = _settings()
    config.id2label = dict(enumerate(settings.pop("labels", ("NO", "MAYBE", "YES"))))
    config.label2id = {label: number for number, label in config.id2label.items()}
    config.num_labels = len(config.id2label)
    for key, value in settings.items():
        setattr(config, key, value)
    BertForSequenceClassification(config).save_pretrained(str(folder))
    tokenizer().save_pretrained(str(folder))
    return folder


def sentence_transformer(
    folder: Path, *, prompts: dict[str, str] | None = None, dense: int = 0
) -> Path:
    """Transformer, mean pooling, a dense layer where `dense` says its size, normalise."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertModel

    BertModel(_settings()).save_pretrained(str(folder / "bert"))
    tokenizer().save_pretrained(str(folder / "bert"))
    transformer = modules.Transformer(str(folder / "bert"))
    parts: list[Any] = [transformer, modules.Pooling(16, "mean")]
    if dense:
        parts.append(modules.Dense(16, dense))
    parts.append(modules.Normalize())
    made = SentenceTransformer(modules=parts, device="cpu", prompts=prompts or {})
    made.save_pretrained(str(folder / "whole"))
    return folder / "whole"


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, **changes}))
