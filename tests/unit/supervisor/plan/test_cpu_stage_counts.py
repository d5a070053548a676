"""The cores that are left, shared by the processes that pre- and postprocess."""

from __future__ import annotations

import pytest

from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage
from batchpool.supervisor.plan.cpu_stage_counts import (
    AUTO_MOST,
    CpuShare,
    cpu_stage_counts,
    is_fused,
)
from batchpool.supervisor.plan.plan import WorkerPlan
from batchpool.supervisor.plan.threads import WorkerThreads

X, Y = Tensor("x", "float32"), Tensor("y", "float32")
PLAIN = ModelSpec("plain", "numpy", (X,), (Y,))
IDS, LOGITS = Tensor("ids", "int32"), Tensor("logits", "float32")
STAGED = ModelSpec("staged", "numpy", (X,), (Y,), (), (IDS,))
AFTER = ModelSpec("after", "numpy", (X,), (Y,), predictions=(LOGITS,))
BOTH = ModelSpec("both", "numpy", (X,), (Y,), (), (IDS,), (), (LOGITS,))
PRE, POST = Stage.PREPROCESS, Stage.POSTPROCESS


def counts(
    share: CpuShare,
    *asked: int,
    specs: tuple[ModelSpec, ...] = (),
    fused: tuple[bool, ...] = (),
) -> tuple[list[int], int]:
    """Of `preprocess`: (processes of each model, threads of each process)."""
    specs = specs or (STAGED,) * len(asked)
    models = [ModelConfig(import_name="a:B", preprocess_workers=n) for n in asked]
    found, threads = cpu_stage_counts(models, specs, share, fused or (False,) * len(asked))
    return [of_model.get(PRE, 0) for of_model in found], threads


@pytest.mark.parametrize(
    ("share", "asked", "expected"),
    [
        (CpuShare(16, 4, 1, 0), (0,), ([10], 1)),
        (CpuShare(16, 4, 1, 0), (0, 0), ([5, 5], 1)),
        (CpuShare(16, 4, 1, 0), (4, 0), ([4, 6], 1)),
        (CpuShare(16, 4, 1, 0), (3,), ([3], 3)),
        (CpuShare(128, 4, 8, 0), (0,), ([AUTO_MOST], 3)),
        (CpuShare(2, 1, 1, 0), (0,), ([1], 1)),
        (CpuShare(16, 4, 0, 1), (0,), ([1], 1)),  # infer on the CPU takes all that is left
        (CpuShare(16, 4, 1, 0), (99, 0), ([99, 1], 1)),
    ],
)
def test_the_cores_that_others_leave(
    share: CpuShare, asked: tuple[int, ...], expected: tuple[list[int], int]
) -> None:
    assert counts(share, *asked) == expected


def test_a_model_without_the_stage_has_no_process_for_it() -> None:
    share = CpuShare(16, 4, 1, 0)
    assert counts(share, 0, 0, specs=(PLAIN, STAGED)) == ([0, 10], 1)
    with pytest.raises(ConfigError, match="model plain: preprocess_workers = 2, and its class"):
        counts(share, 2, specs=(PLAIN,))


@pytest.mark.parametrize(
    ("spec", "asked", "devices", "expected"),
    [
        (STAGED, 0, [None], True),
        (STAGED, 0, ["0"], False),  # a GPU must not wait for a tokenizer
        (STAGED, 1, [None], False),  # a number always means processes
        (AFTER, 0, [None], True),
        (BOTH, 0, [None], True),
        (BOTH, 2, [None], False),
        (PLAIN, 0, [None], False),
    ],
)
def test_workers_on_the_cpu_run_all_stages_unless_a_number_is_set(
    spec: ModelSpec, asked: int, devices: list[str | None], expected: bool
) -> None:
    model = ModelConfig(import_name="a:B", preprocess_workers=asked)
    assert is_fused(model, spec, devices) is expected


def test_a_fused_model_has_no_process_of_its_own_and_takes_no_share() -> None:
    share = CpuShare(16, 4, 1, 0)
    assert counts(share, 0, 0, fused=(True, False)) == ([0, 10], 1)


def test_a_fused_workers_tokenizer_takes_the_workers_threads() -> None:
    worker = WorkerPlan(0, "cpu", None, WorkerThreads(3), fused=True)
    assert worker.settings({})["RAYON_NUM_THREADS"] == "3"
    assert worker.settings({"OMP_NUM_THREADS": "2"})["RAYON_NUM_THREADS"] == "2"
    assert "RAYON_NUM_THREADS" not in worker.settings({"RAYON_NUM_THREADS": "8"})
    assert "CUDA_VISIBLE_DEVICES" not in worker.settings({})


def test_a_number_for_all_models_is_for_those_that_preprocess() -> None:
    share = CpuShare(16, 4, 1, 0)
    assert counts(share, 3, 3, 3, specs=(STAGED, PLAIN, STAGED)) == ([3, 0, 3], 1)
    for asked in ((3, 0), (2, 3)):
        with pytest.raises(ConfigError, match=f"model plain: preprocess_workers = {asked[0]}"):
            counts(share, *asked, specs=(PLAIN, STAGED))
    with pytest.raises(ConfigError, match="model plain: preprocess_workers = 3"):
        counts(share, 3, 3, specs=(PLAIN, PLAIN))


def test_all_stages_on_the_cpu_share_the_cores() -> None:
    share = CpuShare(16, 4, 1, 0)
    models = [ModelConfig(import_name="a:B"), ModelConfig(import_name="a:B", postprocess_workers=4)]
    found, threads = cpu_stage_counts(models, (AFTER, BOTH), share, (False, False))
    assert (found, threads) == ([{POST: 3}, {PRE: 3, POST: 4}], 1)
    with pytest.raises(ConfigError, match="plain: postprocess_workers = 4, and its class defines"):
        cpu_stage_counts(models[1:], (PLAIN,), share, (False,))
    with pytest.raises(ConfigError, match="no postprocess and predictions; leave the key out"):
        cpu_stage_counts(models[1:], (STAGED,), share, (False,))


@pytest.mark.parametrize("stage", [PRE, POST])
def test_it_sees_no_gpu_and_its_libraries_keep_to_their_threads(stage: Stage) -> None:
    worker = WorkerPlan(0, "cpu", None, WorkerThreads(3), stage)
    assert worker.settings({"CUDA_VISIBLE_DEVICES": "1"}) == {
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3", "RAYON_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "PASSIVE",
    }  # fmt: skip
    own = worker.settings({"RAYON_NUM_THREADS": "8", "OMP_NUM_THREADS": "2"})
    assert own == {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
