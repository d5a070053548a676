"""What a reload may change, and what it may not: two plans compared. Pure.

    live      takes effect at once, or with the new workers: a model's code, weights, devices,
              workers and policy, and of the server what `_LIVE` lists
    moved     a model whose tensors or slots changed, one that is added, one that is removed: it
              gets, or leaves, an entry and lanes of its own, as supervisor/reload/lane_migration.py has it
    refused   needs new sockets or tables: everything else. Nothing is changed then

A model that is the same in its tensors and slots keeps its entry and its lanes. Which framework it
is written in is its own business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchpool.core.config.schema import Key, ModelConfig, ServerConfig, keys_of, shown
from batchpool.core.errors import ConfigError
from batchpool.core.layout.segments import MODELS_MOST
from batchpool.supervisor.plan.plan import ModelPlan, Plan, WorkerPlan, lanes_needed

_LIVE = frozenset(
    {
        "client_slots",  # of lanes that are opened from then on
        "max_body_mib",
        "max_bodies_mib",
        "receive_timeout_s",
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
    """One seat of the model with this entry: who is in it, who is to be; one of them may lack.

    moves: the model leaves the entry; its worker stays as long as there are lanes.
    """

    model: int
    old: WorkerPlan | None
    new: WorkerPlan | None
    moves: bool = False


def revised(
    old: Plan, new: Plan, names: Sequence[str], max_lanes: int, taken: Collection[int] = ()
) -> Plan:
    """The new plan with its entries; ConfigError if a reload cannot do that.

    names: of models, by entry, under which something was counted. max_lanes: the tables have room
    for so many. taken: entries that are not free, though the old plan may not have them any more.
    """
    problems = list(_server_problems(old, new))
    models = _with_entries(old, new, names, taken)
    needed = lanes_needed(len({*old.entries, *taken, *(model.entry for model in models)}), new)
    if len(models) < len(new.models):
        problems.append(
            f"there is no room for {len(new.models)} models beside those that they replace: a pool"
            f" has entries for {MODELS_MOST}"
        )
    elif needed > max_lanes:
        problems.append(
            f"{len(new.models)} models take up to {needed} lanes, while they change, and the pool"
            f" was started with room for {max_lanes}"
        )
    if problems:
        raise ConfigError(f"{'; '.join(problems)}: restart the service")
    return replace(new, models=tuple(models))


def _with_entries(
    old: Plan, new: Plan, names: Sequence[str], taken: Collection[int]
) -> list[ModelPlan]:
    """Its models: first those of the old plan, in that order. Some lack if there are too many."""
    before = {model.spec.name: model for model in old.models}
    order = sorted(new.models, key=lambda model: list(before).index(model.spec.name)
                   if model.spec.name in before else len(before))  # fmt: skip
    keep = {model.spec.name for model in order}
    free = [entry for entry in range(MODELS_MOST) if entry not in {*old.entries, *taken}]
    found = []
    for model in order:
        was = before.get(model.spec.name)
        if was is not None and _keeps_lanes(was, model, old.frontends == new.frontends):
            found.append(replace(model, entry=was.entry))
        elif free:
            # What is counted under a name goes on, as long as there is room for it.
            entry = min(free, key=lambda entry: _cost(names, entry, model.spec.name, keep))
            free.remove(entry)
            found.append(replace(model, entry=entry))
    return found


def _cost(names: Sequence[str], entry: int, name: str, keep: Collection[str]) -> tuple[int, int]:
    """How bad it is to give a free entry to this model."""
    had = names[entry] if entry < len(names) else ""
    return (0 if had == name else 1 if not had else 3 if had in keep else 2), entry


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


def _keeps_lanes(was: ModelPlan, model: ModelPlan, same_frontends: bool) -> bool:
    return _tensors(was) == _tensors(model) and (was.slots == model.slots or not same_frontends)


def _tensors(model: ModelPlan) -> object:
    """What clients know of a model. Which framework it is written in is its own business."""
    spec = model.spec
    return spec.name, spec.inputs, spec.outputs, spec.parameters


def pairs_of(old: Plan, new: Plan) -> list[Pair]:
    """Who succeeds whom, in the order of the new plan: on the same device, as far as there are
    workers there; `new` is `revised`."""
    pairs = []
    before = old.entries
    for entry, after in new.entries.items():
        left = list(before[entry].workers) if entry in before else []
        for worker in after.workers:
            heirs_of = [was for was in left if was.cuda_visible == worker.cuda_visible]
            if heirs_of:
                left.remove(heirs_of[0])
            pairs.append(Pair(entry, heirs_of[0] if heirs_of else None, worker))
        pairs += [Pair(entry, was, None) for was in left]
    for entry in before.keys() - new.entries.keys():
        pairs += [Pair(entry, was, None, moves=True) for was in before[entry].workers]
    return pairs


def differences(old: Plan, new: Plan) -> list[str]:
    """What differs, for people: "model b is new", "max_wait_ms of affine: 10 -> 5"."""
    found = list(_differences(old.server, new.server, ""))
    before = {model.spec.name: model for model in old.models}
    for model in new.models:
        name = model.spec.name
        was = before.pop(name, None)
        if was is None:
            found.append(f"model {name!r} is new")
            continue
        if _tensors(was) != _tensors(model):
            found.append(f"other tensors of {name}")
        found += _differences(was.config, model.config, f" of {name}")
    return [*found, *(f"model {name!r} is removed" for name in before)]


def _differences(
    old: ServerConfig | ModelConfig, new: ServerConfig | ModelConfig, of: str
) -> Iterator[str]:
    for key in keys_of(type(old)).values():
        was, now = getattr(old, key.field), getattr(new, key.field)
        if was != now:
            yield f"{key.name}{of}: {_shown(key, was)} -> {_shown(key, now)}"


def _shown(key: Key, value: Any) -> str:
    """As people write it: what the pool decides itself is auto, and no number or text."""
    return "auto" if key.auto and not value else shown(value)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
