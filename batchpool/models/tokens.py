"""Token ids of texts as features: made of what a tokenizer gives, and made into its tensors again.

A row's feature has the ids of its own tokens alone. The worker that infers pads them as the
tokenizer would, with its pad token on its side, so that a model sees what the library gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

import batchpool as bp
from batchpool.models.files.json_files import json_object
from batchpool.models.long_texts import TRUNCATED

if TYPE_CHECKING:
    import torch

Dtype: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]
MADE = ("input_ids", "attention_mask", "token_type_ids")  # of what a tokenizer may give
_NO_LIMIT = 1 << 20  # a tokenizer without a limit has a larger one
_MARKS = 16  # tokens that a tokenizer may add to a text


def dtype_on(device: str, dtype: Dtype, config: Mapping[str, Any]) -> str:
    """The type that weights are loaded with. "auto" is half precision on a GPU, bfloat16 where the
    weights are stored so, and single precision on a CPU. config: of the model."""
    if dtype != "auto":
        return dtype
    if not device.startswith("cuda"):
        return "float32"
    stored = str(config.get("dtype") or config.get("torch_dtype") or "")
    return "bfloat16" if stored == "bfloat16" else "float16"


def token_limit(folder: Path, config: Mapping[str, Any], max_bytes: int) -> int:
    """The most tokens of a text that the model of this folder takes, as far as its files tell; else
    about as many as a text of `max_bytes` has."""
    for limit in (
        json_object(folder / "sentence_bert_config.json").get("max_seq_length"),
        json_object(folder / "tokenizer_config.json").get("model_max_length"),
        config.get("max_position_embeddings"),
    ):
        if isinstance(limit, int | float) and 1 <= limit <= _NO_LIMIT:
            return int(limit)
    return max_bytes + _MARKS


def token_features(most: int, *, truncate: bool) -> list[bp.Tensor]:
    """`ids` and `types` [n, tokens] of texts of at most so many tokens; where longer ones are cut,
    `truncated` [n] tells of which."""
    tokens = bp.Dim(most, "tokens")
    ids = [bp.Tensor("ids", "int32", (tokens,)), bp.Tensor("types", "uint8", (tokens,))]
    return [*ids, bp.Tensor(TRUNCATED, "bool")] if truncate else ids


def features_of(ids: Iterable[Any], types: Iterable[Any] | None) -> dict[str, Any]:
    """The features of rows. ids: of each row's tokens. types: the same, None where the tokenizer
    gives none."""
    rows = [np.asarray(row, np.int32) for row in ids]
    if types is None:
        return {"ids": rows, "types": [np.zeros(len(row), np.uint8) for row in rows]}
    return {"ids": rows, "types": [np.asarray(row, np.uint8) for row in types]}


def token_inputs(batch: bp.Batch, tokenizer: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors [n, longest row] of these names as the tokenizer gives them for the batch."""
    import torch

    ids, types = batch["ids"].long(), batch["types"].long()
    longest = ids.shape[1]
    lengths = torch.as_tensor(batch.sizes["ids"], device=ids.device)
    places = torch.arange(longest, device=ids.device).expand_as(ids)
    if tokenizer.padding_side == "left":
        source = places - (longest - lengths)
        real = source >= 0
        ids, types = (rows.gather(1, source.clamp(min=0)) for rows in (ids, types))
    else:
        real = places < lengths
    made = {
        "input_ids": ids.masked_fill(~real, tokenizer.pad_token_id or 0),
        "attention_mask": real.long(),
        "token_type_ids": types.masked_fill(~real, tokenizer.pad_token_type_id),
    }
    return {name: made[name] for name in names}
