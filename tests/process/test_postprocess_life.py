"""The life of a pool with a stage after `infer`: kills under load, its check, reload, end."""

from __future__ import annotations

import os
import signal

import pytest

from tests.process.callers import Callers
from tests.process.gates import open_gate
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, started, until
from tests.process.test_postprocess import MODEL
from tests.process.test_reload import begin, configure, end, write
from tests.process.test_stages import batches, total, workers
from tests.process.test_stages_life import check

ONE = {**MODEL, "postprocess_workers": 1, "attempts": 5}
KILLS = 4


class Asking(Callers):
    """Local programs that check each answer. versions: of the code of all three stages."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        super().__init__([self._ask] * 4)
        self.versions: set[tuple[int, ...]] = set()

    def _ask(self, number: int) -> None:
        with self._pool.client() as client:
            while not self._stop.is_set():
                texts = [f"{number} {self.counts[number]}", "other"]
                found = client.infer("answered", text=texts, tag=[number, 7])
                assert found["total"].tolist() == list(map(total, texts))
                assert found["echo"].tolist() == [text.encode() for text in texts]
                assert found["tag"].tolist() == [number, 7]
                self.versions |= {tuple(each) for each in found["versions"].tolist()}
                self.count(number)


@pytest.mark.long
def test_kills_of_postprocessing_workers_lose_and_change_no_row() -> None:
    """SIGKILL under load, of each worker in turn: all that is asked is answered, and right."""
    with serving({**ONE, "postprocess_workers": 2}) as pool, Asking(pool) as asking:
        for kill in range(KILLS):
            name = f"postprocess {kill % 2} of answered"
            pid = workers(pool)[name]
            os.kill(pid, signal.SIGKILL)
            asking.await_more(2)
            until(lambda: workers(pool)[name] not in (0, pid), f"another {name}")  # noqa: B023
            until(
                lambda: pool.tally("answered")["stages"]["postprocess"]["workers"] == "2/2",
                "both workers warm",
            )
        asking.await_more()
        assert asking.failures == []


@pytest.mark.long
def test_a_reload_never_mixes_the_stages_of_two_versions() -> None:
    """No row goes through the old code in one stage and the new in another, and none fails."""
    stages = ("preprocess 0", "worker 0", "postprocess 0")
    with serving(ONE) as pool, Asking(pool) as asking:
        before = workers(pool)
        write(pool, "version", 5)
        status, line = end(begin(pool))
        assert status == 0, line
        assert "3 workers of answered" in line
        asking.await_more()
        assert asking.versions == {(0, 0, 0), (5, 5, 5)}
        until(lambda: len(workers(pool)) == len(before), "the end of the old workers")
        after = workers(pool)
        for name in (f"{stage} of answered" for stage in stages):
            assert after[name] not in (before[name], 0)
        more = {"preprocess_workers": 2, "postprocess_workers": 2}
        limits = {"preprocess_max_batch": 2, "postprocess_max_batch": 2}
        configure(pool, {**ONE, **more, **limits})
        status, line = end(begin(pool))
        assert status == 0, line
        asking.await_more()
        for stage in ("preprocess", "postprocess"):
            until(lambda: f"{stage} 1 of answered" in workers(pool), "another worker")  # noqa: B023
            until(
                lambda: pool.tally("answered")["stages"][stage]["max_batch"] == 2,  # noqa: B023
                "the batcher has the new limit",
            )


def test_a_stop_answers_rows_in_every_stage() -> None:
    """Rows stand at a gate in each stage when it comes, and others wait behind them."""
    with serving(ONE) as pool, pool.client() as client:
        futures = []
        for first, stage in ((1, "post"), (11, "run"), (21, "pre")):
            tags = range(first, first + 9)
            futures += [
                client.submit("answered", text=[f"{stage} gate 1"], tag=[tag]) for tag in tags
            ]
            until(lambda: any(batches(pool, stage, tag) for tag in tags), "the gate")  # noqa: B023
        pool.signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in pool.log, "the beginning of the end")
        open_gate(pool, 1)
        found = [future.result(PATIENCE_S)["tag"].item() for future in futures]
        assert found == [*range(1, 10), *range(11, 20), *range(21, 30)]
        assert pool.wait_end() == 0
        pool.assert_all_answered()
        ends = (pool.notes / "batches-ends").read_text().splitlines()
        assert {line.split()[0] for line in ends} == {"pre", "run", "post"}, "each was unloaded"


@pytest.mark.long
def test_check_tries_all_stages(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHPOOL_TEST_NOTES", str(tmp_path))
    module = "tests.process.postprocess_models"
    found = check("Answered", "--load", "--postprocess-workers", "3", module=module)
    assert found.returncode == 0, found.stderr
    rows = "at most 16 rows a call: total, tag, pids, versions, echo"
    assert f"  postprocess    in 3 processes of its own, {rows}" in found.stdout
    loaded = [line for line in found.stdout.splitlines() if "its slowest batch" in line]
    assert [line.split()[0] for line in loaded] == ["loaded", "preprocess", "postprocess"]
    found = check("Unfit", "--load", "--postprocess-workers", "1", module=module)
    assert found.returncode != 0
    assert "RuntimeError: never" in found.stdout


def test_workers_for_a_stage_that_is_not_there_are_refused() -> None:
    with started({"import": "Affine", "postprocess_workers": 2}) as pool:
        pool.expected_status = None
        pool.wait_end()
        text = "model affine: postprocess_workers = 2, and its class defines no postprocess"
        assert text in pool.log
