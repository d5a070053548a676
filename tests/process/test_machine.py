"""Use of the machine by the processes: cores, threads, environment, and when idle nothing."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

import batchpool as bp
from batchpool.supervisor.plan.devices import available_cores
from tests.process.pool_under_test import PATIENCE_S, Pool, cpu_ticks, serving

TORCH = {"import": "tests.process.torch_models:Threads"}
IDLE_S = 2.0
MOST_OF_A_CORE = 0.10
MOST_WAKE_UPS = 100  # a second; a loop that looks each millisecond makes a thousand


def cpu_s(pool: Pool) -> float:
    """CPU seconds that all processes of the pool have used."""
    return sum(map(cpu_ticks, pool.processes())) / os.sysconf("SC_CLK_TCK")


def wake_ups(pool: Pool) -> int:
    """The times that threads of the pool have begun to wait, for a bell or for a while."""
    found = 0
    for pid in pool.processes():
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            (times,) = re.findall(r"^voluntary_ctxt_switches:\s*(\d+)$", status.read_text(), re.M)
            found += int(times)
    return found


@pytest.mark.long
def test_an_idle_pool_takes_next_to_nothing() -> None:
    """C69: four workers and a client sleep until they are rung; the next request is not late."""
    with serving({"import": "Affine", "workers_per_device": 4}) as pool, pool.client() as client:
        x = np.ones((1, 4), np.float32)
        assert client.submit("affine", x=x).result(PATIENCE_S)["y"].tolist() == [[3] * 4]
        before, woken_before, start = cpu_s(pool), wake_ups(pool), time.monotonic()
        own = time.process_time()
        time.sleep(IDLE_S)  # the measurement itself
        used = (cpu_s(pool) - before) / (time.monotonic() - start)
        own_used = (time.process_time() - own) / IDLE_S
        woken = (wake_ups(pool) - woken_before) / (time.monotonic() - start)
        assert used < MOST_OF_A_CORE, f"{used:.1%} of a core"
        assert woken < MOST_WAKE_UPS, f"{woken:.0f} wake-ups a second: something polls"
        assert own_used < MOST_OF_A_CORE, f"an idle client takes {own_used:.1%} of a core"
        # A machine that is busy with something else may keep one of them waiting.
        assert min(answered_in_s(client) for _ in range(5)) < 0.4, "they wait for a look"


def answered_in_s(client: bp.Client) -> float:
    """The time to an answer of a pool that has been idle for a moment."""
    time.sleep(0.05)
    start = time.monotonic()
    assert client.infer("affine", x=np.ones((1, 4), np.float32))["y"].tolist() == [[3] * 4]
    return time.monotonic() - start


@pytest.mark.long
def test_workers_share_the_cores_between_them() -> None:
    """C63: as torch in each worker says."""
    pytest.importorskip("torch")
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "")
    with serving({**TORCH, "workers_per_device": 2}, env=env) as pool, pool.client() as client:
        x = np.random.default_rng(1).standard_normal((300, 256), np.float32)
        found = client.infer("threads", x=x)
        np.testing.assert_array_equal(found["y"], 2 * x)
        assert set(found["pid"]) <= set(pool.pids("worker"))
        assert set(found["threads"]) == {max(1, available_cores() // 2)}


def test_the_users_own_thread_setting_wins() -> None:
    """C63: OMP_NUM_THREADS of the pool's environment."""
    pytest.importorskip("torch")
    with serving(TORCH, env={"OMP_NUM_THREADS": "1"}) as pool, pool.client() as client:
        found = client.infer("threads", x=np.ones((2, 256), np.float32))
        assert found["y"].tolist() == [[2] * 256] * 2
        assert found["threads"].tolist() == [1] * 2
        # torch's own objects are not walked by each collection while batches wait
        assert found["frozen"].min() > 100_000


@pytest.mark.parametrize(
    ("visible", "cpu_threads", "threads"), [("-1", "auto", "3"), ("GPU-0123,MIG-4567", 2, "2")]
)
def test_a_cpu_worker_keeps_the_environment_of_the_pool(
    visible: str, cpu_threads: str | int, threads: str
) -> None:
    """C61: a list of UUIDs passes unread. Of its threads the model's own key says more."""
    env = {"CUDA_VISIBLE_DEVICES": visible, "OMP_NUM_THREADS": "3", "MARK": "a mark"}
    env |= dict.fromkeys(("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"), "")
    model = {"import": "Environment", "cpu_threads": cpu_threads}
    with serving(model, env=env) as pool, pool.client() as client:
        names = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MARK", "OMP_WAIT_POLICY"]
        values = client.infer("environment", name=names)["value"]
        assert [value.decode() for value in values] == [visible, threads, "a mark", "PASSIVE"]
        assert pool.status()["models"]["environment"]["threads"] == threads
        assert f"is warm on cpu with {threads} threads after" in pool.log


def test_nobody_but_a_worker_imports_the_users_model() -> None:
    """C62: workers are started by exec, and torch is in no other process."""
    witness = {"import": "tests.process.import_witness:Witness", "workers_per_device": 2}
    with serving(witness) as pool, pool.client() as client:
        assert client.infer("witness", x=[5.0])["y"].tolist() == [5]
        assert pool.status()["models"]["witness"]["ready"]
        imported = {int(path.name.split("-")[1]) for path in pool.notes.glob("imported-*")}
        workers = set(pool.pids("worker"))
        assert len(imported) == 3, "describe and two workers"
        assert workers < imported
        others = set(pool.processes()) - workers
        assert not others & imported
        for pid in workers:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            assert words[1:4] == [b"-P", b"-m", b"batchpool.worker"], "started by exec"
        for pid in others:
            assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
