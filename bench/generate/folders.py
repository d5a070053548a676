"""Folders of decoders with random weights, of a size that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Small enough for two cores; the shape of Qwen2-0.5B.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "initializer_range": 0.2,  # else the logits are nearly equal, and their order is chance
    },
    "qwen2": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
}


def write_folder(folder: Path, size: str) -> Path:
    """A folder of a Qwen2 with random weights; bfloat16 unless it is tiny."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = Qwen2Config(**SIZES[size], **ends, max_position_embeddings=4096)
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.float32 if size == "tiny" else torch.bfloat16).save_pretrained(str(folder))
    return folder
