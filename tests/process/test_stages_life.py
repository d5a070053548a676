"""The life of a pool whose model has stages: its check and start, reloads under load, its end."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from tests.process.callers import Callers
from tests.process.gates import open_gate
from tests.process.pool_under_test import ROOT, Pool, command, serving, started, until
from tests.process.test_reload import begin, configure, end, write
from tests.process.test_stages import MODEL, batches, total, workers

ONE: dict[str, Any] = {**MODEL, "preprocess_workers": 1, "workers_per_device": 1}


class Asking(Callers):
    """Local programs and their answers' versions: of the preprocessing worker and the other."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        super().__init__([self._ask] * 4)
        self.versions: set[tuple[int, int]] = set()

    def _ask(self, number: int) -> None:
        with self._pool.client() as client:
            while not self._stop.is_set():
                text = f"{number} {self.counts[number]}"
                found = client.infer("staged", text=[text])
                assert found["total"].tolist() == [total(text)]
                first, second = found["versions"][0].tolist()
                self.versions.add((first, second))
                self.counts[number] += 1


def test_a_reload_never_mixes_the_stages_of_two_versions() -> None:
    """No row is preprocessed by the old code and inferred by the new, and none fails."""
    with serving(ONE) as pool, Asking(pool) as asking:
        before = workers(pool)
        write(pool, "version", 5)
        status, line = end(begin(pool))
        assert status == 0, line
        assert "2 workers of staged" in line
        asking.await_more()
        assert asking.versions == {(0, 0), (5, 5)}
        until(lambda: len(workers(pool)) == len(before), "the end of the old workers")
        after = workers(pool)
        for name in ("preprocess 0 of staged", "worker 0 of staged"):
            assert after[name] not in (before[name], 0)
        configure(pool, {**ONE, "preprocess_workers": 2, "preprocess_max_batch": 2})
        status, line = end(begin(pool))
        assert status == 0, line
        asking.await_more()
        until(lambda: "preprocess 1 of staged" in workers(pool), "another preprocessing worker")
        until(
            lambda: pool.tally("staged")["stages"]["preprocess"]["max_batch"] == 2,
            "the batcher has the new limit",
        )


def test_a_failed_reload_leaves_both_stages_as_they_were() -> None:
    with serving(ONE) as pool, pool.client() as client:
        pool.tracebacks_expected = True
        before = workers(pool)
        configure(pool, {**ONE, "import": "tests.process.staged_models:Unfit", "name": "staged"})
        status, line = end(begin(pool))
        assert status != 0
        assert "preprocess 0 of staged" in line
        assert client.infer("staged", text=["on"])["total"].tolist() == [total("on")]
        assert workers(pool) == before


@pytest.mark.parametrize("stage", ["pre", "run"])
def test_a_stop_answers_rows_in_either_stage(stage: str) -> None:
    with serving(ONE) as pool, pool.client() as client:
        futures = [client.submit("staged", text=[f"{stage} gate 1"], tag=[i]) for i in range(1, 10)]
        until(lambda: any(batches(pool, stage, i) for i in range(1, 10)), "the gate")
        pool.signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in pool.log, "the beginning of the end")
        open_gate(pool, 1)
        assert [future.result(60)["tag"].item() for future in futures] == list(range(1, 10))
        assert pool.wait_end() == 0
        assert "stopped: every accepted request was answered" in pool.last_line
        ends = (pool.notes / "batches-ends").read_text().splitlines()
        assert {line.split()[0] for line in ends} == {"pre", "run"}, "each stage was unloaded"


def check(
    model: str, *flags: str, module: str = "tests.process.staged_models"
) -> subprocess.CompletedProcess[str]:
    words = command("check", "--model", f"{module}:{model}", *flags)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_check_tries_both_stages(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHPOOL_TEST_NOTES", str(tmp_path))
    found = check("Staged", "--load", "--preprocess-workers", "3", "--preprocess-max-batch", "5")
    assert found.returncode == 0, found.stderr
    assert "  preprocess     3 processes, at most 5 rows a call: ids, fate, from" in found.stdout
    loaded = [line for line in found.stdout.splitlines() if "its slowest batch" in line]
    assert [line.split()[0] for line in loaded] == ["loaded", "preprocess"]
    found = check("Unfit", "--load")
    assert found.returncode != 0
    assert "the model refused its own warm-up row: never" in found.stdout


def test_workers_for_a_stage_that_is_not_there_are_refused() -> None:
    with started({"import": "Affine", "preprocess_workers": 2}) as pool:
        pool.expected_status = None
        pool.wait_end()
        text = "model affine: preprocess_workers = 2, and its class defines no preprocess"
        assert text in pool.log
