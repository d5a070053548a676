"""A discovery of another process: it arrives over a channel unchanged, or not at all."""

from __future__ import annotations

import os

import msgspec
import pytest

from batchpool.control.channel import pair
from batchpool.control.edges import FROM_DISCOVERY
from batchpool.control.process_messages import Discovered
from batchpool.core.config.options import OptionText
from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError, StartError
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


def refused_unasked(monkeypatch: pytest.MonkeyPatch, *models: ModelConfig) -> str:
    """The refusal of these models on a machine without GPUs, before any of them is probed."""

    def probe_model(model: ModelConfig, env: object, timeout_s: float) -> ProbedModel:
        raise AssertionError(f"{model.import_name} was probed")

    monkeypatch.setattr(module, "probe_model", probe_model)
    monkeypatch.setattr(module, "gpu_count", lambda path: 0)
    with pytest.raises((ConfigError, StartError)) as caught:
        discover(Config(models=models), dict(os.environ))
    return str(caught.value)


ONNX = "batchpool.models.onnx:Onnx"
TEXTS = "batchpool.models.text_classifier:TextClassifier"


def test_an_option_of_a_ready_model_is_refused_before_any_model_is_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ModelConfig("m:A"), ModelConfig(ONNX, "fraud", {"path": OptionText("1")})
    misspelt = ModelConfig(TEXTS, "mood", {"path": "nowhere", "max_token": 3})
    text = refused_unasked(monkeypatch, *first, misspelt)
    assert text.startswith(
        f'model mood ({TEXTS}): unknown option max_token = 3; did you mean "max_tokens"?;'
    )
    out_of_bounds = ModelConfig(ONNX, "b", {"path": "nowhere", "max_dim": OptionText("0")})
    text = refused_unasked(monkeypatch, *first, out_of_bounds)
    assert text.startswith(f'model b ({ONNX}): option max_dim = "0": expected `int` >= 1;')


def test_devices_that_are_not_there_are_refused_before_any_model_is_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = refused_unasked(monkeypatch, ModelConfig("m:A"), ModelConfig("m:B", devices=(0,)))
    assert text == 'model m:B: devices = [0]: no GPU is visible here; expected "auto" or "cpu"'


def test_models_of_users_are_probed_before_ready_ones_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def probe_model(model: ModelConfig, env: object, timeout_s: float) -> ProbedModel:
        asked.append(model.import_name)
        return ProbedModel(model.import_name, SPEC, False)

    monkeypatch.setattr(module, "probe_model", probe_model)
    checked: list[list[str]] = []
    monkeypatch.setattr(
        module,
        "check_ready_options",
        lambda models, env, timeout_s: checked.append([model.import_name for model in models]),
    )
    models = tuple(ModelConfig(name) for name in ("m:A", ONNX, "m:B", TEXTS))
    found = discover(Config(models=models), {})
    assert asked == ["m:A", "m:B", ONNX, TEXTS]
    assert [model.import_name for model in found.described] == ["m:A", ONNX, "m:B", TEXTS]
    assert checked == [[ONNX, TEXTS]]
    discover(Config(models=models[1:2]), {})
    assert len(checked) == 1  # the probe of a single model begins with its options


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
