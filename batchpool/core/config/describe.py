"""The text of a key's default and of its allowed values, and of a model's options and batches, for
help, messages, documents and plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchpool.core.config.key import Key, number_text, shown
from batchpool.core.config.schema import ModelConfig


def default_text(key: Key) -> str:
    """The default as TOML writes it; "auto" for a number that the pool decides."""
    if key.is_auto_number and key.default == 0:
        return '"auto"'
    if key.kind == "float":
        return number_text(key.default)
    return shown(key.default)


def values_text(key: Key) -> str:
    """The allowed values, and the one that the pool chooses where the key is left open."""
    if not key.auto:
        return key.expected
    if key.is_auto_number:
        return f"{key.expected}, which is {key.auto}"
    return f'{key.expected}; "" means {key.auto}'


def options_text(options: Mapping[str, Any]) -> str:
    """The options of a model in one line, as TOML writes them."""
    return ", ".join(f"{key} = {shown(value)}" for key, value in options.items())


def batches_text(config: ModelConfig) -> str:
    """The batches of `infer` in one line: rows, waits, target."""
    rows = f"at most {config.max_batch} rows"
    if config.batch_sizes:
        rows = " or ".join(map(str, config.batch_sizes)) + " rows"
    if config.max_batch_elements:
        rows += f" and {config.max_batch_elements} elements of an input"
    wait = f"at most {config.max_wait_ms:g} ms of waiting"
    if config.policy == "adaptive" and config.max_wait_peak_ms > config.max_wait_ms:
        wait += f", {config.max_wait_peak_ms:g} ms in a flood"
    target = f", p99 within {config.target_p99_ms:g} ms" if config.target_p99_ms else ""
    return f"{config.policy}: {rows}, {wait}{target}"
