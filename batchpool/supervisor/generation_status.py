"""The counts of a generator in the pool's status."""

from __future__ import annotations

from typing import Any

from batchpool.core.metrics.totals import Totals
from batchpool.supervisor.percentiles import percentiles_ms

_TIMES = {"first_token": "worker_first_token", "token_gap": "worker_token_gap"}


def generation_counts(totals: Totals, model: str) -> dict[str, Any]:
    """Sequences that run and tokens that are set aside for them; tokens, and sequences that went on
    in another worker, of all time; percentiles in milliseconds, None without a count."""
    tokens = totals.values("worker_tokens_total", "kind", model=model)
    counts: dict[str, Any] = {
        "running": int(totals.value("worker_sequences_running", model=model)),
        "kv_tokens": int(totals.value("worker_kv_tokens_reserved", model=model)),
        "prompt_tokens": tokens.get("prompt", 0),
        "tokens": tokens.get("generated", 0),
        "resumed": int(totals.value("worker_sequences_resumed_total", model=model)),
        "ends": totals.values("worker_sequences_total", "reason", model=model),
    }
    for name, metric in _TIMES.items():
        counts |= percentiles_ms(name, totals.histogram(f"{metric}_seconds", model=model))
    return counts
