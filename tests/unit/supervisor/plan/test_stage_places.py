"""Where the stages of a planned model run: in its workers on the CPU, in processes of their own
beside a GPU or as the operator says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.supervisor.plan.plan import Plan, make_plan
from batchpool.supervisor.plan.probe_model import ProbedModel

STAGED = ModelSpec(
    "m",
    "torch",
    (Tensor("text", "bytes", max_bytes=8),),
    (Tensor("y", "float32"),),
    (),
    (Tensor("ids", "int32", (4,)),),
)


def plan(*, visible: tuple[str, ...] = (), spec: ModelSpec = STAGED, **model: Any) -> Plan:
    config = Config(models=(ModelConfig(import_name="a:B", **model),))
    return make_plan(config, [ProbedModel("a:B", spec, cuda=True)], visible, 8, "/s")


def test_on_the_cpu_it_is_fused_into_the_workers() -> None:
    made = plan()
    (model,) = made.models
    assert (model.cpu_workers, model.fused_rows) == ((), {"preprocess": 16})
    assert model.workers[0].fused
    assert model.declared == STAGED
    assert model.spec.features == (), "nobody else knows of features"
    assert model.lane == lane_layout(model.spec, model.lane.slots)
    assert "  preprocess     in the workers, at most 16 rows a call: ids" in made.text({})


def test_all_stages_are_fused_or_none() -> None:
    both = replace(STAGED, predictions=(Tensor("logits", "float32", (3,)),), kept_tensors=("ids",))
    (model,) = plan(spec=both, postprocess_max_batch=4).models
    assert (model.cpu_workers, model.fused_rows) == ((), {"preprocess": 16, "postprocess": 4})
    assert model.spec == replace(both, features=(), predictions=(), kept_tensors=())
    (model,) = plan(spec=both, postprocess_workers=2).models
    assert [worker.stage.label for worker in model.cpu_workers] == ["preprocess"] + [
        "postprocess"
    ] * 2
    assert model.spec == both


def test_a_number_asks_for_processes() -> None:
    made = plan(preprocess_workers=2, preprocess_max_batch=3)
    (model,) = made.models
    assert (len(model.cpu_workers), model.fused_rows) == (2, {})
    assert model.spec == model.declared == STAGED
    assert "in 2 processes of its own, at most 3 rows a call: ids" in made.text({})


def test_beside_a_gpu_it_has_processes_of_its_own() -> None:
    (model,) = plan(visible=("0",)).models
    assert len(model.cpu_workers) == 4, "8 cores less 2 front ends, batcher and worker"
    assert not model.workers[0].fused
    assert model.spec == STAGED
    (model,) = plan(visible=("0",), devices="cpu").models
    assert model.workers[0].fused
