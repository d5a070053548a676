"""The plan of a generator: its defaults, and the settings that do not apply to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import batchpool as bp
from batchpool.core.config.ready_models import READY_MODELS
from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError
from batchpool.core.layout.segments import worker_layout_of
from batchpool.model import spec_of
from batchpool.supervisor.plan.plan import ModelPlan
from batchpool.supervisor.plan.text_notes import text_notes
from tests.unit.supervisor.plan.test_plan import SMALL, plan


class Story(bp.Generator):
    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=64),))
    max_tokens = 32

    def join(self, sequences: Any) -> None:  # type: ignore[override]
        raise NotImplementedError

    def step(self) -> bp.StepTokens:
        raise NotImplementedError

    def leave(self, numbers: Any) -> None:
        raise NotImplementedError


SPEC = spec_of(Story)


def generator(**model: Any) -> ModelPlan:
    return plan(spec=SPEC, **model).models[0]


def test_its_worker_has_a_record_for_each_sequence() -> None:
    model = generator(max_batch=100)
    assert model.worker_segment.slots == 128
    assert model.worker_segment == worker_layout_of(SPEC, 100, plan(spec=SPEC).max_lanes)


def test_its_requests_get_ten_minutes_where_the_configuration_says_nothing() -> None:
    assert generator().request_timeout_s == 600
    assert generator(request_timeout_s=30.0).request_timeout_s == 30
    assert plan(spec=SMALL).models[0].request_timeout_s == 30


def test_its_text_tells_of_sequences_and_not_of_batches() -> None:
    text = plan(spec=SPEC, max_batch=7).text({})
    assert "  sequences      at most 7 at once in a worker" in text
    assert "  tokens         prompts of at most 64, answers of at most 32" in text
    assert "  text           none: prompts and answers are tokens" in text
    assert "batches" not in text


@pytest.mark.parametrize(
    ("template", "line"),
    [("{{ messages }}", "completions and chats"), ("", "completions; no chats")],
)
def test_its_text_tells_what_openais_clients_can_ask(template: str, line: str) -> None:
    spec = replace(SPEC, text=bp.Text("tokenizer.json", template))
    assert f"  text           {line}\n" in plan(spec=spec).text({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_sizes", (2, 4)), ("max_batch_elements", 100), ("policy", "fixed"),
        ("max_wait_ms", 3.0), ("max_wait_peak_ms", 7.0), ("target_p99_ms", 50.0),
        ("preprocess_workers", 2), ("preprocess_max_batch", 2), ("postprocess_workers", 1),
        ("postprocess_max_batch", 8), ("background_slowdown", 1.0),
    ],
)  # fmt: skip
def test_a_setting_of_batches_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} = .* of model 'story': it is a generator"):
        generator(**{name: value})


def test_no_more_rows_wait_than_sixteen_times_those_that_run() -> None:
    found = {n: generator(max_batch=n).slots for n in (1, 8, 48, 64, 256, 1000)}
    assert found == {1: 16, 8: 128, 48: 1024, 64: 1024, 256: 4096, 1000: 4096}
    assert generator(max_batch=8, slots=2000).slots == 2000
    assert plan(max_batch=8).models[0].slots == 4096, "of another model"


def test_a_decoder_whose_folder_has_no_tokenizer_is_noted() -> None:
    """Its own text endpoints would be 400 alone; other generators may make sounds."""
    causal_lm = ModelConfig(import_name=READY_MODELS["causal_lm"])
    (note,) = text_notes(causal_lm, SPEC)
    assert "there is no tokenizer.json in its folder" in note
    assert text_notes(causal_lm, replace(SPEC, text=bp.Text("tokenizer.json"))) == ()
    assert generator().notes == ()
