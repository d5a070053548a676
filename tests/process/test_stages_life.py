"""The life of a pool whose model has stages: its check and start, and a reload that fails.

Reloads under load, and its end, are in test_postprocess_life.py, with all three stages.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.process.pool_under_test import ROOT, command, serving, started
from tests.process.test_reload import begin, configure, end
from tests.process.test_stages import MODEL, total, workers

ONE: dict[str, Any] = {**MODEL, "preprocess_workers": 1, "workers_per_device": 1}


@pytest.mark.long
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


def check(
    model: str, *flags: str, module: str = "tests.process.staged_models"
) -> subprocess.CompletedProcess[str]:
    words = command("check", "--model", f"{module}:{model}", *flags)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_check_tries_both_stages(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHPOOL_TEST_NOTES", str(tmp_path))
    found = check("Staged", "--load", "--preprocess-workers", "3", "--preprocess-max-batch", "5")
    assert found.returncode == 0, found.stderr
    line = "  preprocess     in 3 processes of its own, at most 5 rows a call: ids, fate, from"
    assert line in found.stdout
    loaded = [line for line in found.stdout.splitlines() if "its slowest batch" in line]
    assert [line.split()[0] for line in loaded] == ["loaded", "preprocess"]
    found = check("Together", "--load")
    assert found.returncode == 0, found.stderr
    line = "  preprocess     in the workers, at most 16 rows a call: ids, fate, from"
    assert line in found.stdout
    loaded = [line for line in found.stdout.splitlines() if "its slowest batch" in line]
    assert [line.split()[0] for line in loaded] == ["loaded"]
    ends = (tmp_path / "batches-ends").read_text().splitlines()
    assert [line.split()[0] for line in ends] == ["run", "pre"] * 2, "the last load is undone first"
    found = check("Unfit", "--load")
    assert found.returncode != 0
    assert "the model refused its own warm-up row: never" in found.stdout


def test_workers_for_a_stage_that_is_not_there_are_refused() -> None:
    with started({"import": "Affine", "preprocess_workers": 2}) as pool:
        pool.expected_status = None
        pool.wait_end()
        text = "model affine: preprocess_workers = 2, and its class defines no preprocess"
        assert text in pool.log
