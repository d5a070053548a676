"""The note of a plan about a ready generator whose folder holds no tokenizer."""

from __future__ import annotations

from batchpool.core.config.ready_models import READY_MODELS
from batchpool.core.config.schema import ModelConfig
from batchpool.core.tensors.spec import ModelSpec


def text_notes(model: ModelConfig, spec: ModelSpec) -> tuple[str, ...]:
    """A note for `causal_lm` without a text; generators of one's own may have other tokens."""
    if spec.text is not None or model.import_name != READY_MODELS["causal_lm"]:
        return ()
    return (
        "there is no tokenizer.json in its folder: it takes and makes tokens alone, and"
        " /v1/completions and /v1/chat/completions do not serve it",
    )
