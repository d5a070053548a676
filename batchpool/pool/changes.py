"""What a reload may change, and what it may not: two plans compared. Pure.

    live      takes effect at once, or with the new workers: a model's code, weights, devices,
              workers and policy, and of the server what `_LIVE` lists
    refused   needs new sockets, segments or lanes: everything else. Nothing is changed then

A model that is the same in its tensors and slots keeps its lanes; its place among the models
stays that of the old plan, whatever the order in the new file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from batchpool.core.config import ModelConfig, ServerConfig, keys_of, shown
from batchpool.core.errors import ConfigError
from batchpool.pool.plan import ModelPlan, Plan, WorkerPlan

_LIVE = frozenset(
    {
        "client_slots",  # of lanes that are opened from then on
        "max_body_mib",
        "load_timeout_s",
        "stall_timeout_s",
        "drain_s",
        "log_level",
        "access_log",
        "access_log_sample",
    }
)
_DERIVED = frozenset({"frontends", "socket"})  # compared as they were decided, not as asked for


@dataclass(frozen=True)
class Pair:
    """One seat of the model with this index: who is in it, who is to be; one of them may lack."""

    model: int
    old: WorkerPlan | None
    new: WorkerPlan | None


def revised(old: Plan, new: Plan) -> Plan:
    """The new plan, its models in the order of the old; ConfigError if a reload cannot do that."""
    problems = [*_server_problems(old, new), *_model_problems(old, new)]
    if problems:
        raise ConfigError(f"{'; '.join(problems)}: restart the service")
    by_name = {model.spec.name: model for model in new.models}
    return replace(new, models=tuple(by_name[model.spec.name] for model in old.models))


def _server_problems(old: Plan, new: Plan) -> Iterator[str]:
    fixed = [
        key.name
        for key in keys_of(ServerConfig).values()
        if key.field not in _LIVE | _DERIVED
        and getattr(old.server, key.field) != getattr(new.server, key.field)
    ]
    if old.frontends != new.frontends:
        fixed.append("frontends")
    if old.socket != new.socket:
        fixed.append("socket")
    if fixed:
        yield f"{_listed(fixed)} changed"


def _model_problems(old: Plan, new: Plan) -> Iterator[str]:
    before = {model.spec.name: model for model in old.models}
    after = {model.spec.name: model for model in new.models}
    for name in after.keys() - before.keys():
        yield f"model {name!r} is new"
    for name, was in before.items():
        model = after.get(name)
        if model is None:
            yield f"model {name!r} is no longer there"
        elif _tensors(was) != _tensors(model):
            yield f"the tensors of model {name!r} changed"
        elif was.slots != model.slots and old.frontends == new.frontends:
            yield f"the slots of model {name!r} changed from {was.slots} to {model.slots}"


def _tensors(model: ModelPlan) -> object:
    """What clients know of a model. Which framework it is written in is its own business."""
    return replace(model.spec, framework="numpy")


def pairs_of(old: Plan, new: Plan) -> list[Pair]:
    """Who succeeds whom, in the order of the new plan: on the same device, as far as there are
    workers there; `new` is `revised`."""
    pairs = []
    for index, (before, after) in enumerate(zip(old.models, new.models, strict=True)):
        left = list(before.workers)
        for worker in after.workers:
            heirs_of = [was for was in left if was.cuda_visible == worker.cuda_visible]
            if heirs_of:
                left.remove(heirs_of[0])
            pairs.append(Pair(index, heirs_of[0] if heirs_of else None, worker))
        pairs += [Pair(index, was, None) for was in left]
    return pairs


def differences(old: Plan, new: Plan) -> list[str]:
    """The keys that differ, for people: "max_wait_ms of affine: 10 -> 5"."""
    found = list(_differences(old.server, new.server, ""))
    for before, after in zip(old.models, new.models, strict=True):
        found += _differences(before.config, after.config, f" of {before.spec.name}")
    return found


def _differences(
    old: ServerConfig | ModelConfig, new: ServerConfig | ModelConfig, of: str
) -> Iterator[str]:
    for key in keys_of(type(old)).values():
        was, now = getattr(old, key.field), getattr(new, key.field)
        if was != now:
            yield f"{key.name}{of}: {shown(was)} -> {shown(now)}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
