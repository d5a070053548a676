"""The pool's state in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.resources.resources import PoolResources
from batchpool.supervisor.status import status_line

GPUS = ("0", "GPU-8932f937")


def said(
    warm: tuple[bool, ...],
    *,
    models: int = 1,
    gpus: bool = False,
    was_ready: bool = True,
    stopping: bool = False,
    ending: bool = False,
    closed: bool = False,
    reload: str = "",
    last_reload: str = "",
    batcher: bool = True,
    stalled: int = 0,
    claimed: tuple[int, ...] = (),
) -> str:
    """The line of a pool whose workers, in order of its models, are warm or not."""
    worker_slots = [
        SimpleNamespace(
            entry=i % models,
            ready=ready,
            plan=SimpleNamespace(device="cuda:0" if gpus else "cpu",
                                 cuda_visible=GPUS[i % 2] if gpus else None),
        )
        for i, ready in enumerate(warm)
    ]  # fmt: skip
    names = {i: SimpleNamespace(spec=SimpleNamespace(name=f"m{i}")) for i in range(models)}
    serving = [any(s.ready for s in worker_slots if s.entry == i) for i in range(models)]
    state_page = SimpleNamespace(
        serves=lambda model: serving[model], stalled=SimpleNamespace(get=lambda: stalled)
    )
    lanes = [SimpleNamespace(rows=lambda n=n: n) for n in claimed]
    resources = SimpleNamespace(
        plan=SimpleNamespace(entries=names), state_page=state_page, lanes=lanes
    )
    process_fleet = SimpleNamespace(
        workers=SimpleNamespace(worker_slots=worker_slots),
        tasks=SimpleNamespace(serves=lambda: True),
        was_ready=was_ready,
        closed=closed,
        stopping=stopping,
        ending=ending,
        everybody=lambda: worker_slots,
        batcher=SimpleNamespace(child=object() if batcher else None),
    )
    return status_line(
        cast(PoolResources, resources), cast(ProcessFleet, process_fleet), reload, last_reload
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (said((False,), was_ready=False), "loading m0 on cpu; 0 of 1 workers warm"),
        (
            said((True, False, False), models=2, gpus=True, was_ready=False),
            "loading m1 on GPU GPU-8932f937; 1 of 3 workers warm",
        ),
        (said((True,), was_ready=False), "starting the front ends"),
        (said((True,)), "serving 1 model, 1 worker"),
        (said((True,) * 4, models=2), "serving 2 models, 4 workers"),
        (said((True, False)), "serving 1 model, 1 of 2 workers"),
        (
            said((True, False, True), models=3),
            "serving 3 models, 2 of 3 workers; no worker for m1",
        ),
        (said((True,), stalled=1), "serving 1 model, 1 worker; the batcher stands still"),
        (said((True,), batcher=False), "serving 1 model, 1 worker; the batcher stands still"),
        (said((True,), stopping=True, claimed=(0, 3, 4)), "draining: 7 rows under way"),
        (said((True,), stopping=True, claimed=(1,)), "draining: 1 row under way"),
        (said((False,), stopping=True, was_ready=False), "draining: 0 rows under way"),
        (said((True, True), stopping=True, ending=True), "stopping: 2 workers to end"),
        (said((True,), closed=True, claimed=(1, 1)), "draining: 2 rows under way"),
        (
            said((True,), reload="1 of 2 new workers serve", last_reload="failed: x"),
            "serving 1 model, 1 worker; reloading: 1 of 2 new workers serve",
        ),
        (said((True,), last_reload="done in 1.0 s"), "serving 1 model, 1 worker"),
        (
            said((True,), last_reload="failed: no file pool.toml"),
            "serving 1 model, 1 worker; last reload failed: no file pool.toml",
        ),
    ],
)
def test_the_line_says_what_the_pool_does_and_what_it_lacks(line: str, expected: str) -> None:
    assert line == expected
