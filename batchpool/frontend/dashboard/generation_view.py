"""The generator of a model on the page: its running sequences, its tokens, and their times."""

from __future__ import annotations

from typing import Any

from batchpool.client.pool_facts import ModelFacts
from batchpool.frontend.dashboard.percentiles import percentiles_ms
from batchpool.frontend.dashboard.rates import Span

# What a reader of a stream waits for, and one iteration, by the metric of each.
_TIMES = {
    "first_token": "worker_first_token_seconds",
    "token_gap": "worker_token_gap_seconds",
    "step": "worker_step_seconds",
}


def generation_view(facts: ModelFacts, span: Span) -> dict[str, Any] | None:
    """{running, kv_tokens, tokens_per_s, prompt_tokens_per_s, resumed, ends, latency}; None for a
    model that is no generator.

    running: sequences now. kv_tokens: tokens that are set aside for them. resumed: sequences that
    went on in another worker, of all time. ends: sequences of the last seconds that ended, by how.
    """
    if not facts.spec.generates:
        return None
    model = {"model": facts.spec.name}
    rate = {
        kind: span.rate_per_s("worker_tokens_total", kind=kind, **model)
        for kind in ("generated", "prompt")
    }
    return {
        "running": int(span.now.value("worker_sequences_running", **model)),
        "kv_tokens": int(span.now.value("worker_kv_tokens_reserved", **model)),
        "tokens_per_s": rate["generated"],
        "prompt_tokens_per_s": rate["prompt"],
        "resumed": int(span.now.value("worker_sequences_resumed_total", **model)),
        "ends": span.rises("worker_sequences_total", "reason", **model),
        "latency": {
            part: percentiles_ms(span.histogram(metric, **model)) for part, metric in _TIMES.items()
        },
    }
