"""Changes that a reload may make, those that it refuses, and which worker replaces which."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.supervisor.plan.diff import check_server, differences, revised, worker_pairs
from batchpool.supervisor.plan.plan import Plan, lanes_needed, make_plan
from batchpool.supervisor.plan.probe_model import ProbedModel

X, Y = Tensor("x", "float32", (4,)), Tensor("y", "float32")
SPECS = {name: ModelSpec(name, "numpy", (X,), (Y,)) for name in ("a", "b", "c")}
LIVE = (
    "client_slots", "max_body_mib", "max_bodies_mib", "receive_timeout_s", "load_timeout_s",
    "stall_timeout_s", "drain_s", "unload_timeout_s", "model_control_mode", "log_level",
    "access_log", "access_log_sample",
    "forwarded_allow_ips", "root_path", "allowed_hosts", "cors_origins",
    "api_keys_file",
)  # fmt: skip
FREE = {
    "devices": "cpu", "workers_per_device": 3, "max_batch": 32, "batch_sizes": (8, 64),
    "policy": "fixed", "max_wait_ms": 3.0, "max_wait_peak_ms": 50.0, "target_p99_ms": 90.0,
    "watermark": 0.5, "request_timeout_s": 2.0, "batch_timeout_s": 2.0, "attempts": 1,
    "idempotent": False, "import_name": "another:Class", "preprocess_max_batch": 8,
    "postprocess_max_batch": 8, "background_slowdown": 2.0,
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
    described = [ProbedModel(f"m:{n}", known[n], known[n].framework == "torch") for n in names]
    config = Config(ServerConfig(**(server or {})), tuple(configs))
    return make_plan(config, described, visible, 4, socket)


def revise(old: Plan, new: Plan, *names: str) -> Plan:
    """names: under which something was counted, by entry."""
    counted = names or [model.spec.name for model in old.models]
    return revised(old, new, counted, old.max_lanes)


def entries(of: Plan) -> dict[str, int]:
    return {model.spec.name: model.entry for model in of.models}


def refusal(old: Plan, new: Plan) -> str:
    with pytest.raises(ConfigError) as caught:
        revise(old, new)
    return str(caught.value)


def needed(field: str) -> dict[str, Any]:
    """Keys of the server without which another one has its default alone."""
    return {"tasks": True} if field == "batches" else {}


def another(field: str) -> Any:
    """A legal value of a key of the server that is not its default."""
    default = getattr(ServerConfig(), field)
    words = ("debug", "json", "all", "explicit", "another", "/another", "*", "640", "redis://a")
    for value in (*words, not default, 2, 3, 0.5, 64):
        try:
            if getattr(ServerConfig(**needed(field), **{field: value}), field) != default:
                return value
        except ConfigError:
            continue
    raise AssertionError(field)


@pytest.mark.parametrize("field", [f.name for f in fields(ServerConfig)])
def test_every_key_of_the_server_is_live_or_refused(field: str) -> None:
    socket = "/t" if field == "socket" else "/s"
    old = plan(server=needed(field))
    new = plan(server={**needed(field), field: another(field)}, socket=socket)
    if field in LIVE:
        assert revise(old, new).server == new.server
    else:
        assert refusal(old, new) == f"{field} changed: restart the service"


@pytest.mark.parametrize("field", FREE)
def test_a_model_keeps_its_lanes_whatever_changes_but_its_tensors_and_slots(field: str) -> None:
    new = plan(**{field: FREE[field]})
    assert revise(plan(), new).models == new.models


def test_what_needs_other_sockets_or_tables_is_refused_all_at_once() -> None:
    names = [f"m{i}" for i in range(9)]
    specs = {name: replace(SPECS["a"], name=name) for name in names}
    new = plan(*names, specs=specs, server={"port": 9, "host": "::"})
    assert refusal(plan(), new) == (
        "host and port changed; 9 models take up to 330 lanes, while they change, and the pool was"
        " started with room for 264: restart the service"
    )


def test_what_no_models_change_is_told_without_them() -> None:
    old = plan()
    check_server(old, ServerConfig(drain_s=3, log_level="debug"), old.frontends, old.socket)
    with pytest.raises(ConfigError) as caught:
        check_server(old, ServerConfig(port=9, host="::"), old.frontends + 1, "/other")
    assert str(caught.value) == "host, port, frontends and socket changed: restart the service"


def test_there_are_so_many_entries_and_no_more() -> None:
    names = [f"m{i}" for i in range(MODELS_MOST + 1)]
    specs = {name: replace(SPECS["a"], name=name) for name in names}
    old, new = plan(names[0], specs=specs), plan(*names[1:], specs=specs)
    assert refusal(old, new) == (
        f"there is no room for {MODELS_MOST} models beside those that they replace: a pool has"
        f" entries for {MODELS_MOST}: restart the service"
    )


OTHER_TENSORS = [
    replace(SPECS["a"], outputs=(Tensor("y", "float32", (1,)),)),
    replace(SPECS["a"], parameters=(Tensor("k", "int64", (), default=5),)),
    replace(SPECS["a"], parameters=(Tensor("k", "int64", (), default=6),)),
    replace(SPECS["a"], inputs=(Tensor("x", "int32", (4,)),)),
]


@pytest.mark.parametrize("spec", OTHER_TENSORS)
def test_other_tensors_are_another_entry_although_their_bytes_may_be_the_same(
    spec: ModelSpec,
) -> None:
    old, new = plan("a", "b"), plan("a", "b", specs={"a": spec})
    revised_plan = revise(old, new)
    assert entries(revised_plan) == {"a": 2, "b": 1}
    assert differences(old, revised_plan) == ["other tensors of a"]
    moved = [(p.entry, p.old, p.new, p.migrates) for p in worker_pairs(old, revised_plan)]
    (was,), (kept,) = (model.workers for model in old.models)
    assert moved == [(2, None, was, False), (1, kept, kept, False), (0, was, None, True)]


def test_other_slots_are_another_entry_and_back_again_the_first() -> None:
    old, new = plan(), plan(slots=128)
    second = revise(old, new)
    assert entries(second) == {"a": 1}
    assert differences(old, second) == ["slots of a: auto -> 128"]
    assert entries(revise(second, plan(), "a", "a")) == {"a": 0}, "its counts go on"
    assert entries(revise(old, plan(max_batch=8192))) == {"a": 1}, "4096 slots are too few for it"


def test_another_input_arena_is_another_entry() -> None:
    pictures = ModelSpec(
        "a", "numpy", (Tensor("x", "bytes", max_bytes=8 << 20),), (Tensor("y", "float32"),)
    )
    old = plan(specs={"a": pictures}, slots=64)
    assert entries(revise(old, plan(specs={"a": pictures}, slots=64))) == {"a": 0}
    larger = plan(specs={"a": pictures}, slots=64, input_arena_mib=48)
    assert entries(revise(old, larger)) == {"a": 1}
    same = plan(specs={"a": pictures}, slots=64, input_arena_mib=32)
    assert entries(revise(old, same)) == {"a": 0}


def test_a_model_that_preprocesses_never_keeps_its_lanes() -> None:
    """Rows in its lanes would be preprocessed by the old code and inferred by the new."""
    staged = replace(SPECS["a"], features=(Tensor("ids", "int32"),))
    old = plan("a", "b", specs={"a": staged}, preprocess_workers=1)
    new = revise(old, plan("a", "b", specs={"a": staged}, preprocess_workers=1))
    assert entries(old) == {"a": 0, "b": 1}
    assert entries(new) == {"a": 2, "b": 1}
    pairs = worker_pairs(old, new)
    stages = [(pair.entry, (pair.new or pair.old).stage.label) for pair in pairs]  # type: ignore[union-attr]
    assert stages == [
        (2, "infer"),
        (2, "preprocess"),
        (1, "infer"),
        (0, "infer"),
        (0, "preprocess"),
    ]
    assert [pair.migrates for pair in pairs] == [False, False, False, True, True]
    assert differences(old, new) == []
    other = replace(staged, features=(Tensor("ids", "int64"),))
    found = differences(old, plan("a", "b", specs={"a": other}, preprocess_workers=1))
    assert found == ["other tensors of a"]


def test_a_fused_model_keeps_its_lanes_until_it_gets_processes_of_its_own() -> None:
    """Its features stay within a worker, so that old and new workers may serve one lane."""
    staged = replace(SPECS["a"], features=(Tensor("ids", "int32"),))
    old = plan(specs={"a": staged})
    other = replace(staged, features=(Tensor("ids", "int64"),))
    assert entries(revise(old, plan(specs={"a": other}))) == {"a": 0}
    apart = plan(specs={"a": staged}, preprocess_workers=2)
    assert entries(revise(old, apart)) == {"a": 1}
    assert entries(revise(apart, old)) == {"a": 1}
    assert differences(old, apart) == [
        "preprocess of a: in 2 processes of its own",
        "preprocess_workers of a: auto -> 2",
    ]


def test_a_model_that_postprocesses_in_processes_of_its_own_never_keeps_its_lanes() -> None:
    after = replace(SPECS["a"], predictions=(Tensor("logits", "float32"),))
    old = plan("a", specs={"a": after}, postprocess_workers=1)
    again = plan("a", specs={"a": after}, postprocess_workers=1)
    assert entries(revise(old, again)) == {"a": 1}
    kept = replace(after, kept_tensors=("x",))
    found = differences(old, plan("a", specs={"a": kept}, postprocess_workers=1))
    assert found == ["other tensors of a"]


def test_models_come_and_go_and_their_names_are_counted_on() -> None:
    old = plan("a", "b")
    new = revise(old, plan("c", "b"))
    assert entries(new) == {"b": 1, "c": 2}
    assert differences(old, new) == ["model 'c' is new", "model 'a' is removed"]
    again = revise(new, plan("b", "c", "a"), "a", "b", "c")
    assert entries(again) == {"b": 1, "c": 2, "a": 0}
    full = ["a", "b", "c", *(f"gone {i}" for i in range(3, MODELS_MOST))]
    more = revise(again, plan("b", "c", "a", "d", specs={"d": SPECS["a"]}), *full)
    assert entries(more)["d"] == 3, "of a name that nobody asks for any more"


def test_another_framework_is_the_models_own_business() -> None:
    new = plan(specs={"a": replace(SPECS["a"], framework="torch")}, visible=("0", "1"))
    assert revise(plan(), new).models[0].spec.framework == "torch"
    (was,) = plan().models[0].workers
    first, second, third = worker_pairs(plan(), new)
    assert [(p.old, p.new) for p in (first, second)] == [(None, w) for w in new.models[0].workers]
    assert (third.old, third.new) == (was, None), "the CPU's worker has no successor"
    assert not third.migrates


def test_models_keep_their_places_whatever_the_order_of_the_file() -> None:
    new = revise(plan("a", "b"), plan("b", "a", max_wait_ms=9.0))
    assert [model.spec.name for model in new.models] == ["a", "b"]
    assert new.models[1].config.max_wait_ms == 9


def test_successors_sit_on_the_same_devices() -> None:
    torch = {"a": replace(SPECS["a"], framework="torch")}
    old = plan(specs=torch, visible=("0", "1"), workers_per_device=2)
    new = plan(specs=torch, visible=("1", "2"))
    pairs = [
        (p.old and p.old.cuda_visible, p.new and p.new.cuda_visible) for p in worker_pairs(old, new)
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


def test_what_the_pool_decides_itself_is_called_auto() -> None:
    by_itself, told = plan(), plan(server={"frontends": 1, "max_bodies_mib": 128}, slots=4096)
    assert differences(by_itself, told) == [
        "frontends: auto -> 1", "max_bodies_mib: auto -> 128", "slots of a: auto -> 4096",
    ]  # fmt: skip
    assert differences(told, by_itself)[2] == "slots of a: 4096 -> auto"


def test_an_entry_that_is_not_free_yet_is_nobodys_and_its_lanes_count() -> None:
    old, new = plan(slots=64), plan(slots=128)
    assert entries(revised(old, new, ["a"], old.max_lanes)) == {"a": 1}
    assert entries(revised(old, new, ["a"], old.max_lanes, {0, 1})) == {"a": 2}
    needed = lanes_needed(3, new)
    revised(old, new, ["a"], needed, {0, 1})
    with pytest.raises(ConfigError, match="room for"):
        revised(old, new, ["a"], needed - 1, {0, 1})


def test_other_options_are_told_and_keep_the_lanes() -> None:
    old, new = plan(options={"path": "a"}), plan(options={"path": "b", "k": 1})
    assert differences(old, new) == [
        f'options of {old.models[0].spec.name}: {{path = "a"}} -> {{path = "b", k = 1}}'
    ]
    assert revised(old, new, (), 10_000).models[0].entry == old.models[0].entry
