"""Payload moves through shared memory alone: where inputs lie, and what system calls carry."""

from __future__ import annotations

import collections
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.process.pool_under_test import PATIENCE_S, Pool, is_alive, serving, until

REQUESTS = 10_000
ROW = 16384  # float32 numbers, 64 KiB
CONTROL_BYTES = 4096  # no doorbell or control message is larger
CALLS = (
    "read,write,readv,writev,pread64,pwrite64,preadv,pwritev,preadv2,pwritev2,"
    "sendto,recvfrom,sendmsg,recvmsg,sendmmsg,recvmmsg,sendfile,splice,tee,vmsplice,"
    "copy_file_range,process_vm_readv,process_vm_writev"
)


@pytest.fixture(scope="module")
def pool() -> Any:
    with serving(
        {"import": "Lies", "policy": "fixed", "max_wait_ms": 50},
        {"import": "Wide", "slots": 128},
        "Inplace",
    ) as pool:
        yield pool


def test_a_batch_of_one_extent_is_read_where_its_client_wrote_it(pool: Pool) -> None:
    with pool.client() as client:
        for n in (1, 64):
            found = client.infer("lies", x=np.zeros((n, 16), np.float32))
            assert {m.decode() for m in found["mapping"]} == {"/memfd:batchpool-lane (deleted)"}
            assert not found["writable"].any()


def test_rows_of_two_clients_are_gathered_outside_of_their_lanes(pool: Pool) -> None:
    with pool.client() as one, pool.client() as other:
        x = np.zeros((32, 16), np.float32)
        one.infer("lies", x=x)
        other.infer("lies", x=x)

        def ride_together() -> bool:
            before = pool.tally("lies")["batches"]
            futures = [client.submit("lies", x=x) for client in (one, other)]
            mappings = {m for future in futures for m in future.result(PATIENCE_S)["mapping"]}
            if pool.tally("lies")["batches"] != before + 1:
                return False  # this process stood still between them
            assert all(b"memfd" not in name and b"batchpool" not in name for name in mappings)
            return True

        until(ride_together, "a batch of both")


def test_no_system_call_of_batcher_and_worker_carries_payload(pool: Pool, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    worker = next(
        row["pid"] for row in pool.status()["processes"] if row["name"] == "worker 0 of wide"
    )
    traced = [*pool.pids("batcher"), worker]
    x = np.arange(ROW, dtype=np.float32)
    with pool.client() as client:
        np.testing.assert_array_equal(client.infer("wide", x=x[None])["y"][0], 2 * x + 1)
        with Tracing(traced, tmp_path / "calls"):
            for first in range(0, REQUESTS, 50):
                futures = [client.submit("wide", x=(x + i)[None]) for i in range(first, first + 50)]
                for i, future in enumerate(futures, first):
                    assert future.result(PATIENCE_S)["y"][0, i] == 2 * (i + i) + 1
    assert pool.tally("wide")["completed"] == REQUESTS + 1
    sizes: collections.Counter[str] = collections.Counter()
    lines = (tmp_path / "calls").read_text().splitlines()
    for line in lines:
        match = re.search(r"(\w+)\(.*\) += (\d+)$", line)
        if match:
            sizes[match[1]] = max(sizes[match[1]], int(match[2]))
    # Every batch rings a bell, or strace was not there.
    assert sum("write(" in line for line in lines) > REQUESTS / 64
    assert {call: n for call, n in sizes.items() if n > CONTROL_BYTES} == {}


class Tracing:
    """strace on running processes for the length of a block."""

    def __init__(self, pids: list[int], output: Path) -> None:
        self._pids = pids
        command = ["strace", "-f", "-e", f"trace={CALLS}", "-o", str(output)]
        for pid in pids:
            command += ["-p", str(pid)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self) -> None:
        until(lambda: all(map(self._is_traced, self._pids)), "strace on every process")

    def _is_traced(self, pid: int) -> bool:
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            text = self._process.stderr.read().decode()
            if "Operation not permitted" in text:
                pytest.skip("strace may not attach to processes here")
            raise AssertionError(text)
        status = Path(f"/proc/{pid}/status").read_text()
        return re.search(r"^TracerPid:\t[1-9]", status, re.MULTILINE) is not None

    def __exit__(self, *exc: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        assert all(map(is_alive, self._pids))


@pytest.mark.parametrize("neighbours", [0, 5])
def test_a_model_that_edits_its_input_starts_each_attempt_from_the_original(
    pool: Pool, neighbours: int
) -> None:
    """C19: `writable` gives it a copy, so that neither a retry nor a neighbour sees the edit."""
    with pool.client() as client:
        rows = np.arange(4 * (1 + neighbours), dtype=np.float32).reshape(-1, 4)
        marks = np.zeros(len(rows), np.int64)
        marks[-1] = 100 + neighbours
        found = client.infer("inplace", x=rows, mark=marks)["y"]
        np.testing.assert_array_equal(found, rows + 1)
        assert (pool.notes / f"inplace-{100 + neighbours}").exists(), "it did not die at first"
        until(lambda: pool.status()["models"]["inplace"]["workers"] == "1/1", "the next worker")
