"""The threads of a worker: their number, their waiting, and who has the last word on both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from batchpool.supervisor.plan.threads import WorkerThreads, threads_per_worker

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(16, 1, 16), (16, 4, 4), (16, 3, 5), (2, 4, 1), (8, 0, 8)]
)
def test_threads_of_all_workers_are_about_the_cores(cores: int, workers: int, threads: int) -> None:
    """C63: whatever the number of workers."""
    assert threads_per_worker(cores, workers) == threads


def test_the_user_s_own_number_goes_before_the_pools() -> None:
    threads = WorkerThreads(4)
    assert threads.settings({}) == {"OMP_NUM_THREADS": "4", **ASLEEP}
    assert threads.settings({"OMP_NUM_THREADS": ""}) == {"OMP_NUM_THREADS": "4", **ASLEEP}
    assert threads.settings({"OMP_NUM_THREADS": "9"}) == ASLEEP
    assert threads.number_in({"OMP_NUM_THREADS": "9"}) == "9"


def test_the_configuration_s_number_goes_before_both() -> None:
    threads = WorkerThreads(4, fixed=True)
    assert threads.settings({"OMP_NUM_THREADS": "9"}) == {"OMP_NUM_THREADS": "4", **ASLEEP}
    assert threads.number_in({"OMP_NUM_THREADS": "9"}) == "4"


@pytest.mark.parametrize(
    "said", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "100"}, {"KMP_BLOCKTIME": "200"}]
)
def test_what_the_user_says_of_waiting_stays(said: Mapping[str, str]) -> None:
    assert WorkerThreads(4).settings(said) == {"OMP_NUM_THREADS": "4"}


def test_a_worker_on_a_gpu_waits_as_before() -> None:
    assert WorkerThreads(4, on_cpu=False).settings({}) == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("threads", "env", "text"),
    [
        (WorkerThreads(2), {}, "2 a worker; while they wait they sleep"),
        (
            WorkerThreads(2, fixed=True),
            {"OMP_NUM_THREADS": "9"},
            "2 a worker (cpu_threads); while they wait they sleep",
        ),
        (
            WorkerThreads(2),
            {"OMP_NUM_THREADS": "9", "GOMP_SPINCOUNT": "100"},
            "9 a worker (OMP_NUM_THREADS); GOMP_SPINCOUNT=100",
        ),
        (WorkerThreads(2, on_cpu=False), {}, "2 a worker"),
    ],
)
def test_the_choice_is_told_with_its_reason(
    threads: WorkerThreads, env: Mapping[str, str], text: str
) -> None:
    assert threads.text(env) == text


def test_torch_obeys_the_thread_setting() -> None:
    """C63: the variable is the one that torch reads."""
    pytest.importorskip("torch")
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    answer = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.get_num_threads())"],
        env={**env, **WorkerThreads(1).settings(env)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "1"


def test_the_openmp_of_torch_obeys_the_wait_policy() -> None:
    """As it says of itself where OMP_DISPLAY_ENV makes it."""
    pytest.importorskip("torch")
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    env = {k: v for k, v in os.environ.items() if k not in waiting}
    answer = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**env, "OMP_DISPLAY_ENV": "TRUE", **WorkerThreads(2).settings(env)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in answer.stderr
