"""`batchpool status`: the state of a running pool, or its last batches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from batchpool.cli.config_source import pool_socket
from batchpool.cli.tables import status_text
from batchpool.control.batch_messages import BatchCounts
from batchpool.core.config.describe import options_text
from batchpool.core.errors import PoolError, StartError

SOME_BATCHES = 20
# Keys of a model's status; any other key is printed in the table of states.
_COUNTS = (
    *("admitted", "completed", "retried", "cancelled", "expired", "refused", "lost"),
    *("invalid", "batches", "rows", "failed", "no_memory", "claims_refused", "http"),
)
_TIMES = tuple(
    f"{what}_p{percent}_ms" for what in ("http_request", "queue", "batch") for percent in (50, 99)
)


def status(args: argparse.Namespace) -> int:
    from batchpool.client.control import ask_batches, ask_status

    path = pool_socket(args)
    found: Any
    try:
        found = ask_status(path) if args.batches is None else ask_batches(path, args.batches)
    except PoolError as exc:
        raise StartError(exc.message) from None
    except OSError as exc:
        raise StartError(f"no pool answers at {path}: {exc}") from None
    if args.batches is None and (tasks := _tasks(path, found)) is not None:
        found["tasks"] = tasks
    if args.json:
        print(json.dumps(found, indent=2))
    elif args.batches is None:
        print(status_text(in_tables(found)))
    else:
        print(status_text({"batches": found}))
    return 0


def _tasks(path: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """The counts of tasks; None where the pool keeps none, or its task process does not answer."""
    from batchpool.client.task_questions import TaskQuestions
    from batchpool.control.task_messages import GetTaskStatus, TaskStatus

    processes = found["processes"]
    if not isinstance(processes, list) or all(row["name"] != "tasks" for row in processes):
        return None
    try:
        with TaskQuestions(path, timeout_s=3.0) as questions:
            counts = questions.ask(GetTaskStatus(), TaskStatus)
    except PoolError:
        return None
    return {
        **{f"{state} {model}": n for model, states in counts.tasks.items()
           for state, n in states.items()},
        "dead letters": counts.kept_letters,
        "oldest_s": round(counts.oldest_s, 1),
        "store_bytes": counts.store_bytes,
        "store": counts.store,
        **_batches(counts.batches),
    }  # fmt: skip


def _batches(counts: BatchCounts | None) -> dict[str, Any]:
    """The counts of files and batches; none where the pool keeps none."""
    if counts is None:
        return {}
    batches = {f"batches {status}": n for status, n in counts.statuses.items()}
    return {**batches, "files": counts.files, "file_bytes": counts.bytes}


def in_tables(found: dict[str, Any]) -> dict[str, Any]:
    """The status with its models in tables, each of which fits a screen.

    There is one more where a model has stages, a line for each, and one of generators.
    """
    shown: dict[str, Any] = {}
    with_options = any(model.get("options") for model in found.get("models", {}).values())
    apart = {*_COUNTS, *_TIMES, "stages", "generation", *(() if with_options else ("options",))}
    for key, value in found.items():
        if key != "models":
            shown[key] = value
            continue
        shown["models"] = _columns(value, lambda name: name not in apart)
        shown["counts"] = _columns(value, lambda name: name in _COUNTS)
        shown["times"] = _columns(value, lambda name: name in _TIMES)
        stages = {
            f"{stage} of {name}": counts
            for name, model in value.items()
            for stage, counts in model.get("stages", {}).items()
        }
        shown |= {"stages": stages} if stages else {}
        generation = {n: model["generation"] for n, model in value.items() if "generation" in model}
        shown |= {"generation": _columns(generation, lambda name: True)} if generation else {}
    return shown


def _columns(
    models: dict[str, dict[str, Any]], wanted: Callable[[str], bool]
) -> dict[str, dict[str, Any]]:
    return {
        name: {key: _flat(key, value) for key, value in model.items() if wanted(key)}
        for name, model in models.items()
    }


def _flat(key: str, value: Any) -> Any:
    """The options as TOML writes them, a dict of counts as a list of texts; any other value
    unchanged."""
    if not isinstance(value, dict):
        return value
    if key == "options":
        return options_text(value) or None
    return [f"{name} {count}" for name, count in value.items()]
