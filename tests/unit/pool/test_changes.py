"""What a reload may change, what it refuses, and who succeeds whom."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from batchpool.core.config import Config, ModelConfig, ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.core.tensors import ModelSpec, Tensor
from batchpool.pool.changes import differences, pairs_of, revised
from batchpool.pool.described import Described
from batchpool.pool.plan import Plan, make_plan

X, Y = Tensor("x", "float32", (4,)), Tensor("y", "float32")
SPECS = {name: ModelSpec(name, "numpy", (X,), (Y,)) for name in ("a", "b", "c")}
LIVE = (
    "client_slots", "max_body_mib", "load_timeout_s", "stall_timeout_s", "drain_s", "log_level",
    "access_log", "access_log_sample",
)  # fmt: skip
FREE = {
    "devices": "cpu", "workers_per_device": 3, "max_batch": 32, "batch_sizes": (8, 64),
    "policy": "fixed", "max_wait_ms": 3.0, "max_wait_peak_ms": 50.0, "target_p99_ms": 90.0,
    "watermark": 0.5, "request_timeout_s": 2.0, "batch_timeout_s": 2.0, "attempts": 1,
    "idempotent": False, "import_name": "another:Class",
}  # fmt: skip


def plan(
    *models: str,
    specs: dict[str, ModelSpec] | None = None,
    server: dict[str, Any] | None = None,
    socket: str = "/s",
    visible: tuple[str, ...] = (),
    **model: Any,
) -> Plan:
    """A plan of models of these names; `model`: facts of the first."""
    names = models or ("a",)
    configs = [ModelConfig(import_name=f"m:{name}", name=name) for name in names]
    configs[0] = replace(configs[0], **model)
    known = {**SPECS, **(specs or {})}
    described = [Described(f"m:{n}", known[n], known[n].framework == "torch") for n in names]
    config = Config(ServerConfig(**(server or {})), tuple(configs))
    return make_plan(config, described, visible, 4, socket)


def refusal(old: Plan, new: Plan) -> str:
    with pytest.raises(ConfigError) as caught:
        revised(old, new)
    return str(caught.value)


def another(field: str) -> Any:
    """A legal value of a key of the server that is not its default."""
    default = getattr(ServerConfig(), field)
    for value in ("debug", "json", "all", "another", not default, 2, 3, 0.5):
        try:
            if getattr(ServerConfig(**{field: value}), field) != default:
                return value
        except ConfigError:
            continue
    raise AssertionError(field)


@pytest.mark.parametrize("field", [f.name for f in fields(ServerConfig)])
def test_every_key_of_the_server_is_live_or_refused(field: str) -> None:
    socket = "/t" if field == "socket" else "/s"
    old, new = plan(), plan(server={field: another(field)}, socket=socket)
    if field in LIVE:
        assert revised(old, new).server == new.server
    else:
        assert refusal(old, new) == f"{field} changed: restart the service"


@pytest.mark.parametrize("field", FREE)
def test_a_model_may_change_in_all_but_its_tensors_and_slots(field: str) -> None:
    new = plan(**{field: FREE[field]})
    assert revised(plan(), new).models == new.models


def test_what_needs_other_lanes_is_refused_by_name_all_at_once() -> None:
    changed = replace(SPECS["a"], inputs=(Tensor("x", "float32", (5,)),))
    old = plan("a", "b")
    new = plan("a", "c", specs={"a": changed}, server={"port": 9, "host": "::"})
    assert refusal(old, new) == (
        "host and port changed; model 'c' is new; the tensors of model 'a' changed;"
        " model 'b' is no longer there: restart the service"
    )
    assert refusal(plan(), plan(slots=128)) == (
        "the slots of model 'a' changed from 4096 to 128: restart the service"
    )
    more = plan(max_batch=8192)
    assert "the slots of model 'a' changed from 4096 to 8192" in refusal(plan(), more)


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPECS["a"], outputs=(Tensor("y", "float32", (1,)),)),
        replace(SPECS["a"], parameters=(Tensor("k", "int64", (), default=5),)),
        replace(SPECS["a"], inputs=(Tensor("x", "int32", (4,)),)),
    ],
)
def test_other_tensors_are_refused_although_their_bytes_may_be_the_same(spec: ModelSpec) -> None:
    assert "tensors" in refusal(plan(), plan(specs={"a": spec}))


def test_another_default_of_a_parameter_is_another_tensor() -> None:
    def with_default(value: int) -> Plan:
        k = Tensor("k", "int64", (), default=value)
        return plan(specs={"a": replace(SPECS["a"], parameters=(k,))})

    assert "tensors" in refusal(with_default(1), with_default(2))


def test_another_framework_is_the_models_own_business() -> None:
    new = plan(specs={"a": replace(SPECS["a"], framework="torch")}, visible=("0", "1"))
    assert revised(plan(), new).models[0].spec.framework == "torch"
    (was,) = plan().models[0].workers
    first, second, third = pairs_of(plan(), new)
    assert [(p.old, p.new) for p in (first, second)] == [(None, w) for w in new.models[0].workers]
    assert (third.old, third.new) == (was, None), "the CPU's worker has no successor"


def test_models_keep_their_places_whatever_the_order_of_the_file() -> None:
    new = revised(plan("a", "b"), plan("b", "a", max_wait_ms=9.0))
    assert [model.spec.name for model in new.models] == ["a", "b"]
    assert new.models[1].config.max_wait_ms == 9


def test_successors_sit_on_the_same_devices() -> None:
    torch = {"a": replace(SPECS["a"], framework="torch")}
    old = plan(specs=torch, visible=("0", "1"), workers_per_device=2)
    new = plan(specs=torch, visible=("1", "2"))
    pairs = [
        (p.old and p.old.cuda_visible, p.new and p.new.cuda_visible) for p in pairs_of(old, new)
    ]
    assert pairs == [("1", "1"), (None, "2"), ("0", None), ("0", None), ("1", None)]


def test_differences_are_told_key_by_key() -> None:
    new = plan(server={"drain_s": 5.0}, max_wait_ms=9.0, import_name="m:other")
    assert differences(plan(), new) == [
        "drain_s: 30.0 -> 5.0",
        'import of a: "m:a" -> "m:other"',
        "max_wait_ms of a: 10.0 -> 9.0",
    ]
    assert differences(plan(), plan()) == []
