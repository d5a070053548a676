"""The settings of a generator: those that do not apply to it, and its defaults."""

from __future__ import annotations

from batchpool.core.config.describe import batches_text
from batchpool.core.config.key import shown
from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec

_TIMEOUT_S, _GENERATOR_TIMEOUT_S = 30.0, 600.0

# Of batches and of stages, which a generator does not have: its rows join and leave at every step.
_OF_BATCHES = (
    *("batch_sizes", "max_batch_elements", "policy", "max_wait_ms", "max_wait_peak_ms"),
    *("target_p99_ms", "preprocess_workers", "preprocess_max_batch", "postprocess_workers"),
    *("postprocess_max_batch", "background_slowdown"),
)


def check_settings(config: ModelConfig, spec: ModelSpec) -> None:
    """Raise ConfigError where the configuration of a generator sets what does not apply to it."""
    if not spec.generates:
        return
    for name in _OF_BATCHES:
        key = keys_of(ModelConfig)[name]
        value = getattr(config, key.field)
        if value != key.default:
            raise ConfigError(
                f"{name} = {shown(value)} of model {spec.name!r}: it is a generator, whose rows"
                f" join and leave at every step; leave {name} out (max_batch is the most sequences"
                " that run at once)"
            )


def request_timeout_s(spec: ModelSpec) -> float:
    """The deadline of a request that brings none, where the configuration says nothing."""
    return _GENERATOR_TIMEOUT_S if spec.generates else _TIMEOUT_S


def at_once(spec: ModelSpec, config: ModelConfig) -> list[str]:
    """The lines of a plan's text about what runs at once: batches, or sequences of a generator."""
    if not spec.generates:
        return [f"  batches        {batches_text(config)}"]
    text = "none: prompts and answers are tokens"
    if spec.text is not None:
        text = "completions and chats" if spec.text.chat_template else "completions; no chats"
    return [
        f"  sequences      at most {config.max_batch} at once in a worker",
        f"  tokens         prompts of at most {spec.inputs[0].max_shape[0]}, answers of at most"
        f" {spec.outputs[0].max_shape[0]}",
        f"  text           {text}",
    ]
