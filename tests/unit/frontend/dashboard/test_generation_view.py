"""A generator on the page and in the status."""

from __future__ import annotations

from batchpool import Dim, Generator, Tensor
from batchpool.cli.status import in_tables
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.metrics.totals import Totals
from batchpool.frontend.dashboard.generation_view import generation_view
from batchpool.frontend.dashboard.rates import Span
from batchpool.model import spec_of
from batchpool.supervisor.generation_status import generation_counts
from tests.unit.frontend.dashboard.counted import block, totals
from tests.unit.frontend.models import Affine


class Story(Generator):
    framework = "numpy"
    prompt = Tensor("prompt", "int32", (Dim(8),))

    def join(self, sequences): ...

    def step(self): ...

    def leave(self, numbers): ...


def facts_of(model: type) -> ModelFacts:
    return ModelFacts(0, spec_of(model), 0.9, 30.0, 8)


def counted(n: int) -> Totals:
    """Totals after n rounds of two workers, which count alike."""
    return totals(
        *(
            (
                "worker",
                ("story", str(worker), "cpu", "infer"),
                block(
                    "worker",
                    ("worker_tokens_total", ("generated",), 50 * n),
                    ("worker_tokens_total", ("prompt",), 20 * n),
                    ("worker_sequences_total", ("stop",), 3 * n),
                    ("worker_sequences_total", ("length",), n),
                    ("worker_sequences_resumed_total", (), 2),
                    ("worker_sequences_running", (), 4),
                    ("worker_kv_tokens_reserved", (), 100),
                    times={"worker_first_token_seconds": [0.1] * n},
                ),
            )
            for worker in range(2)
        )
    )


def test_rates_are_of_the_span_and_numbers_of_now() -> None:
    view = generation_view(facts_of(Story), Span(counted(3), counted(1), 2.0).by_model()["story"])
    assert view is not None
    latency = view.pop("latency")
    assert view == {
        "running": 8,
        "kv_tokens": 200,
        "tokens_per_s": 100,
        "prompt_tokens_per_s": 40,
        "resumed": 4,
        "ends": {"stop": 12, "length": 4},
    }
    assert 50 < latency["first_token"]["p50"] < 130
    assert latency["token_gap"] == {"p50": None, "p90": None, "p99": None}


def test_another_model_has_no_such_view() -> None:
    assert generation_view(facts_of(Affine), Span(Totals(), Totals(), 0.0)) is None


def test_the_status_has_a_table_of_generators() -> None:
    counts = generation_counts(counted(2), "story")
    assert (counts["running"], counts["kv_tokens"]) == (8, 200)
    assert (counts["tokens"], counts["prompt_tokens"], counts["resumed"]) == (200, 80, 4)
    assert counts["ends"] == {"stop": 12, "length": 4}
    assert 50 < counts["first_token_p50_ms"] < 130
    assert counts["token_gap_p99_ms"] is None
    tables = in_tables({"models": {"story": {"generation": counts}, "affine": {}}})
    assert list(tables["generation"]) == ["story"]
    assert sorted(tables["generation"]["story"]["ends"]) == ["length 4", "stop 12"]
    assert "generation" not in tables["models"]["story"]
    assert "generation" not in in_tables({"models": {"affine": {}}})
