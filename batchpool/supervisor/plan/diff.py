"""The difference of two plans: what a reload may change, and what needs a restart. Pure.

    live      takes effect at once, or with the new workers: a model's code, options, weights,
              devices, workers and policy, and the server's keys in `_LIVE`
    migrated  a model whose tensors or slots changed, one that is added, one that is removed: it
              gets an entry and lanes of its own, or leaves them
              (`batchpool/supervisor/reload/lane_migration.py`)
    refused   needs new sockets or tables: everything else. Then nothing is changed

A model with the same tensors and slots keeps its entry and its lanes, also if its framework
changed. One with `preprocess` or `postprocess` in processes of its own never does: its rows would
be run by the code of one plan in one stage and by that of the other in the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchpool.core.config.key import Key, shown
from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import ConfigError
from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.tensors.stages import stages_of
from batchpool.supervisor.plan.cpu_stage_counts import stage_place
from batchpool.supervisor.plan.plan import ModelPlan, Plan, WorkerPlan, lanes_needed

_LIVE = frozenset(
    {
        "client_slots",  # applies to lanes opened later
        "max_body_mib",
        "max_bodies_mib",
        "receive_timeout_s",
        "load_timeout_s",
        "stall_timeout_s",
        "drain_s",
        "unload_timeout_s",
        "model_control_mode",
        "log_level",
        "access_log",
        "access_log_sample",
        "forwarded_allow_ips",
        "root_path",
        "allowed_hosts",
        "cors_origins",
        "api_keys_file",
    }
)
_RESTART = ": restart the service"
_ANY = "numpy"  # a framework, where it does not matter
_DERIVED = frozenset({"frontends", "socket"})  # compared as decided, not as configured


@dataclass(frozen=True)
class WorkerPair:
    """The worker of the old plan and of the new plan in one slot; one of them may be missing.

    entry: of their model. migrates: the model leaves the entry, and the old worker stays as long as
    the entry has lanes.
    """

    entry: int
    old: WorkerPlan | None
    new: WorkerPlan | None
    migrates: bool = False


def revised(
    old: Plan, new: Plan, names: Sequence[str], max_lanes: int, taken: Collection[int] = ()
) -> Plan:
    """Return the new plan with its models' entries; ConfigError if a reload cannot change to it.

    names: of models, by entry, under which something was counted. max_lanes: the most that the
    tables hold. taken: entries that are in use although the old plan does not have them any more.
    """
    problems = list(_server_problems(old, new.server, new.frontends, new.socket))
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
        raise ConfigError(f"{'; '.join(problems)}{_RESTART}")
    return replace(new, models=tuple(models))


def check_server(old: Plan, server: ServerConfig, frontends: int, socket: str) -> None:
    """Raise ConfigError where a reload cannot change to these server's keys, whatever the models.

    frontends, socket: as they are decided.
    """
    if problems := list(_server_problems(old, server, frontends, socket)):
        raise ConfigError(f"{'; '.join(problems)}{_RESTART}")


def _with_entries(
    old: Plan, new: Plan, names: Sequence[str], taken: Collection[int]
) -> list[ModelPlan]:
    """The new plan's models with entries: first those of the old plan, in its order.

    If there are too few free entries, some models are missing.
    """
    before = {model.spec.name: model for model in old.models}
    position = {name: number for number, name in enumerate(before)}
    order = sorted(new.models, key=lambda model: position.get(model.spec.name, len(before)))
    keep = {model.spec.name for model in order}
    free = [entry for entry in range(MODELS_MOST) if entry not in {*old.entries, *taken}]
    found = []
    for model in order:
        was = before.get(model.spec.name)
        if was is not None and _keeps_lanes(was, model, old.frontends == new.frontends):
            found.append(replace(model, entry=was.entry))
        elif free:
            # A model gets the entry that counted under its name before, if that is free.
            entry = min(free, key=lambda entry: _cost(names, entry, model.spec.name, keep))
            free.remove(entry)
            found.append(replace(model, entry=entry))
    return found


def _cost(names: Sequence[str], entry: int, name: str, keep: Collection[str]) -> tuple[int, int]:
    """A sort key of free entries for this model: least for the best one."""
    had = names[entry] if entry < len(names) else ""
    return (0 if had == name else 1 if not had else 3 if had in keep else 2), entry


def _server_problems(old: Plan, server: ServerConfig, frontends: int, socket: str) -> Iterator[str]:
    fixed = [
        key.name
        for key in keys_of(ServerConfig).values()
        if key.field not in _LIVE | _DERIVED
        and getattr(old.server, key.field) != getattr(server, key.field)
    ]
    if old.frontends != frontends:
        fixed.append("frontends")
    if old.socket != socket:
        fixed.append("socket")
    if fixed:
        yield f"{_listed(fixed)} changed"


def _keeps_lanes(was: ModelPlan, model: ModelPlan, same_frontends: bool) -> bool:
    if len(stages_of(model.spec)) > 1:
        return False
    same_size = (was.slots, was.lane.arena_bytes) == (model.slots, model.lane.arena_bytes)
    return _tensors(was) == _tensors(model) and (same_size or not same_frontends)


def _tensors(model: ModelPlan) -> object:
    """The part of a model that lanes are made for. Its framework is not."""
    return replace(model.spec, framework=_ANY)


def worker_pairs(old: Plan, new: Plan) -> list[WorkerPair]:
    """The workers of both plans by slot, in the order of the new plan, which is `revised`.

    A new worker is paired with an old one of its model on the same device, as far as there are any.
    """
    pairs = []
    before = old.entries
    for entry, model in new.entries.items():
        unpaired = list(before[entry].all_workers) if entry in before else []
        for worker in model.all_workers:
            same_device = [was for was in unpaired if was.cuda_visible == worker.cuda_visible]
            if same_device:
                unpaired.remove(same_device[0])
            pairs.append(WorkerPair(entry, same_device[0] if same_device else None, worker))
        pairs += [WorkerPair(entry, was, None) for was in unpaired]
    for entry in before.keys() - new.entries.keys():
        pairs += [WorkerPair(entry, was, None, migrates=True) for was in before[entry].all_workers]
    return pairs


def differences(old: Plan, new: Plan) -> list[str]:
    """The differences in words: "model b is new", "max_wait_ms of affine: 10 -> 5"."""
    found = list(_differences(old.server, new.server, ""))
    before = {model.spec.name: model for model in old.models}
    for model in new.models:
        name = model.spec.name
        was = before.pop(name, None)
        if was is None:
            found.append(f"model {name!r} is new")
            continue
        if _tensors(was) != _tensors(model):
            same = replace(was.declared, framework=_ANY) == replace(model.declared, framework=_ANY)
            found += _new_places(model) if same else [f"other tensors of {name}"]
        found += _differences(was.config, model.config, f" of {name}")
    return [*found, *(f"model {name!r} is removed" for name in before)]


def _new_places(model: ModelPlan) -> list[str]:
    """Where the stages of a model run from now on."""
    return [
        f"{stage.label} of {model.spec.name}: {stage_place(len(model.workers_of(stage)))}"
        for stage in model.cpu_stages
    ]


def _differences(
    old: ServerConfig | ModelConfig, new: ServerConfig | ModelConfig, of: str
) -> Iterator[str]:
    for key in keys_of(type(old)).values():
        was, now = getattr(old, key.field), getattr(new, key.field)
        if was != now:
            yield f"{key.name}{of}: {_shown(key, was)} -> {_shown(key, now)}"


def _shown(key: Key, value: Any) -> str:
    """A value as in the configuration file; "auto" for one that the pool decides itself."""
    return "auto" if key.auto and not value else shown(value)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
