"""A discovery of another process: it arrives over a channel unchanged, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from batchpool.control.channel import pair
from batchpool.control.edges import FROM_DISCOVERY
from batchpool.control.process_messages import Discovered
from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.supervisor.plan import discover as module
from batchpool.supervisor.plan.discover import (
    Discovery,
    discover,
    from_message,
    made_by,
    to_message,
)
from batchpool.supervisor.plan.probe_model import ProbedModel

CONFIG = Config(
    ServerConfig(port=9000, drain_s=3, frontends=2),
    (
        ModelConfig(
            import_name="m:A",
            options={"path": "a b", "k": [1, 2.5]},
            devices=(1, 0),
            batch_sizes=(1, 8),
        ),
        ModelConfig(import_name="m:B", devices="cpu", idempotent=False, watermark=0.5),
    ),
)
SPEC = ModelSpec(
    "a",
    "torch",
    (Tensor("ids", "int64", (Dim(max=512),), pad=0), Tensor("text", "bytes", (), max_bytes=9)),
    (Tensor("y", "bfloat16", (4,)),),
    (Tensor("top_k", "int64", (), default=5),),
)
FOUND = Discovery(
    CONFIG, (ProbedModel("m:A", SPEC, True), ProbedModel("m:B", SPEC, False)), ("GPU-1", "3"), 7
)


def sent(message: Discovered) -> Discovered:
    """The message as it arrives at the other end."""
    here, there = pair()
    here.send(message)
    arrived, fds = there.receive(FROM_DISCOVERY)
    assert fds == []
    here.close()
    there.close()
    assert isinstance(arrived, Discovered)
    return arrived


def test_it_arrives_as_it_was() -> None:
    assert from_message(sent(to_message(FOUND)), made_by()) == FOUND


def test_another_batchpool_is_no_match() -> None:
    message = msgspec.structs.replace(to_message(FOUND), made_by="batchpool 99 (layout 7)")
    with pytest.raises(StartError) as caught:
        from_message(sent(message), "batchpool 1 (layout 1)")
    assert str(caught.value) == (
        "batchpool 99 (layout 7) is installed now and the pool runs batchpool 1 (layout 1):"
        " restart the service"
    )


def test_each_model_is_asked_in_the_environment_of_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def probe_model(model: ModelConfig, env: dict[str, str], timeout_s: float) -> ProbedModel:
        asked.append((model.import_name, env, timeout_s))
        return ProbedModel(model.import_name, SPEC, False, {"asked": True})

    monkeypatch.setattr(module, "probe_model", probe_model)
    monkeypatch.setattr(module, "gpu_count", lambda path: 4)
    monkeypatch.setattr(module, "available_cores", lambda: 3)
    env = {"CUDA_VISIBLE_DEVICES": "2,GPU-7"}
    found = discover(CONFIG, env)
    assert asked == [("m:A", env, 600.0), ("m:B", env, 600.0)]
    assert (found.visible, found.cores, found.config.server) == (("2", "GPU-7"), 3, CONFIG.server)
    assert [model.options for model in found.config.models] == [{"asked": True}] * 2


def test_a_class_is_asked_once_unless_its_models_may_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def probe_model(model: ModelConfig, env: object, timeout_s: float) -> ProbedModel:
        asked.append((model.import_name, model.name))
        return ProbedModel(
            model.import_name, SPEC, False, model.options, model.import_name == "m:A"
        )

    monkeypatch.setattr(module, "probe_model", probe_model)
    models = [
        ModelConfig(f"m:{of}", label and of + label) for label in ("1", "2", "") for of in "AB"
    ]
    models.append(ModelConfig("m:A", "other", {"k": 1}))
    found = discover(Config(models=tuple(models)), {})
    assert asked == [
        ("m:A", "A1"), ("m:B", "B1"), ("m:B", "B2"), ("m:A", ""), ("m:B", ""), ("m:A", "other")
    ]  # fmt: skip
    assert [model.import_name for model in found.described] == [m.import_name for m in models]
