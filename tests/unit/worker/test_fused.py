"""The backend of a fused worker: which rows share which calls, what fails alone, and equal answers
alone and in company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import InvalidInput
from batchpool.core.scheduler.element_budget import BucketRows
from batchpool.core.tensors.stages import Stage, fused_spec, stage_spec
from batchpool.model import Batch, Model, spec_of
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.backends.cpu_stage import CpuStageBackend
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.fused import FusedBackend
from batchpool.worker.outputs import CheckedOutputs
from batchpool.worker.padding import Padding
from batchpool.worker.warm_up import warm_up_rows


class Letters(bp.Model):
    """Text of n letters -> n ids; `infer` tells its sum, its padded length and who was with it."""

    framework = "numpy"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=256), bp.Tensor("tag", "int64")]
    parameters = [bp.Tensor("by", "int64", default=1)]
    features = [
        bp.Tensor("ids", "int32", (bp.Dim(256, "letters"),), pad=-1),
        bp.Tensor("word", "bytes", (), max_bytes=16),
        "tag",
    ]
    outputs = [
        bp.Tensor("total", "int64"),
        bp.Tensor("doubled", "int32", (bp.Dim(256, "letters"),)),
        bp.Tensor("word", "bytes", (), max_bytes=16),
        bp.Tensor("tag", "int64"),
    ]

    def __init__(self) -> None:
        self.calls: list[list[int]] = []  # of each call of infer, the rows' tags
        self.lengths: list[int] = []  # of each call of infer, what its rows were padded to
        self.sizes: list[int] = []  # rows of each call of preprocess

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        self.sizes.append(batch.n)
        ids: list[Any] = []
        for row, text in enumerate(batch["text"]):
            ids.append(np.frombuffer(text, np.uint8).astype(np.int32) * int(batch["by"][row]))
            if text == b"invalid":
                ids[row] = ValueError("not a word")
            elif text == b"refused":
                batch.fail(row, InvalidInput("not this word", {"at": 3}))
            elif text == b"wrong":
                ids[row] = KeyError("vocabulary")
            elif text == b"long":
                ids[row] = np.zeros(257, np.int32)
            elif text == b"raise":
                raise RuntimeError("no batch with this word")
            elif text == b"raise refusal":
                raise InvalidInput("one of these")
        return {"ids": ids, "word": [text[:16] for text in batch["text"]]}

    def infer(self, batch: Batch) -> dict[str, Any]:
        assert list(batch) == ["tag", "ids", "word", "by"]
        ids = batch["ids"]
        self.calls.append(batch["tag"][: batch.rows].tolist())
        self.lengths.append(ids.shape[1])
        for row, word in enumerate(batch["word"]):
            if word == b"run raise":
                raise InvalidInput("infer refuses")
            if word == b"run refused":
                batch.fail(row, InvalidInput("infer refuses"))
        there = np.arange(ids.shape[1]) < batch.sizes["ids"]
        assert (ids[~there] == -1).all()
        total = np.where(there, ids, 0).sum(axis=1)
        return {"total": total, "doubled": ids * 2, "word": batch["word"], "tag": batch["tag"]}


def make(
    model: Letters, most: int = 16, sizes: Sequence[int] = (), max_elements: int = 0
) -> FusedBackend:
    spec = spec_of(model)
    last = stage_spec(spec, Stage.INFER)
    padding = Padding(last, sizes, warm_up_rows(model, last)) if sizes else None
    rows = BucketRows.of_stage(last, max_elements, 64, tuple(sizes)) if max_elements else None
    backends = {Stage.PREPROCESS: PreprocessBackend(model), Stage.INFER: NumpyBackend(model)}
    return FusedBackend(spec, backends, {"preprocess": most}, padding, rows)


def run(backend: FusedBackend, *texts: str, by: int = 1) -> CheckedOutputs:
    """The outputs of a batch of texts; tags are their numbers from 100 on."""
    n = len(texts)
    rows = np.empty(n, object)
    rows[:] = [text.encode() for text in texts]
    inputs = {"text": rows, "tag": np.arange(100, 100 + n), "by": np.full(n, by)}
    found = backend.finish(backend.launch(n, inputs, {"text": None, "tag": None}, True))
    assert isinstance(found, CheckedOutputs)
    return found


def total(text: str) -> int:
    return sum(text.encode())


def test_long_rows_go_to_infer_in_parts_that_keep_to_the_element_budget() -> None:
    """256 elements are 16 rows of up to 16 letters, 4 of 33 to 64, and one of more than 128."""
    model = Letters()
    texts = ["b" * 40, "a", "c" * 200] * 6
    found = run(make(model, max_elements=256), *texts)
    assert found.outputs["total"].tolist() == [total(text) for text in texts]  # type: ignore[union-attr]
    assert [len(call) for call in model.calls] == [6, 4, 2, *[1] * 6]


def test_rows_go_to_infer_with_those_of_like_size_and_come_back_in_order() -> None:
    model = Letters()
    texts = ["b" * 40, "a", "c" * 33, "d" * 16, "e" * 100, "", "f" * 64]
    found = run(make(model), *texts, by=3)
    assert found.outputs["total"].tolist() == [3 * total(text) for text in texts]  # type: ignore[union-attr]
    assert found.outputs["tag"].tolist() == list(range(100, 107))  # type: ignore[union-attr]
    assert list(found.outputs["word"]) == [text[:16].encode() for text in texts]
    assert model.calls == [[101, 103, 105], [100, 102, 106], [104]]
    assert model.lengths == [16, 64, 100], "each call is padded to its own longest row"
    for text, row in zip(texts, found.outputs["doubled"], strict=True):
        assert row.tolist() == [6 * byte for byte in text.encode()]


def test_each_call_of_preprocess_has_at_most_its_rows() -> None:
    model = Letters()
    found = run(make(model, most=3), *"abcdefg")
    assert model.sizes == [3, 3, 1]
    assert found.outputs["total"].tolist() == list(map(total, "abcdefg"))  # type: ignore[union-attr]
    assert model.calls == [list(range(100, 107))], "infer gets them all at once"


@pytest.mark.parametrize("most", [2, 16])
def test_a_row_that_preprocess_fails_goes_no_further(most: int) -> None:
    model = Letters()
    found = run(make(model, most), "one", "invalid", "wrong", "two", "refused", "long", "three")
    assert {row: str(error) for row, error in found.refused.items()} == {
        1: "not a word",
        4: "not this word",
    }
    assert found.refused[4].details == {"at": 3}
    assert set(found.failed) == {2, 5}
    assert found.failed[2] == "KeyError: 'vocabulary'"
    assert "at most [256] fits" in found.failed[5]
    assert model.calls == [[100, 103, 106]]
    for row, text in ((0, "one"), (3, "two"), (6, "three")):
        assert found.outputs["total"][row] == total(text)


def test_a_batch_of_which_nothing_is_left_is_not_inferred() -> None:
    model = Letters()
    found = run(make(model), "invalid", "refused")
    assert set(found.refused) == {0, 1}
    assert model.calls == []
    assert len(found.outputs["doubled"]) == len(found.outputs["total"]) == 2


def test_a_refusal_that_is_raised_names_the_row_that_is_alone_in_its_call() -> None:
    model = Letters()
    found = run(make(model, most=1), "one", "raise refusal", "two")
    assert {row: str(error) for row, error in found.refused.items()} == {1: "one of these"}
    assert model.calls == [[100, 102]]
    with pytest.raises(InvalidInput, match="one of these"):  # nobody knows which of three
        run(make(Letters()), "one", "raise refusal", "two")
    with pytest.raises(RuntimeError, match="no batch"):
        run(make(Letters(), most=1), "one", "raise", "two")


def test_infer_refuses_rows_of_its_own_calls() -> None:
    model = Letters()
    found = run(make(model), "a" * 40, "run refused", "b")
    assert {row: str(error) for row, error in found.refused.items()} == {1: "infer refuses"}
    assert found.outputs["total"][0] == total("a" * 40)
    found = run(make(Letters()), "a" * 40, "run raise", "b" * 50)
    assert set(found.refused) == {1}, "alone in its bucket"
    with pytest.raises(InvalidInput, match="infer refuses"):
        run(make(Letters()), "run raise", "b")


def test_batch_sizes_are_those_of_infer_alone() -> None:
    model = Letters()
    seen: list[tuple[int, int, list[int]]] = []
    infer = model.infer

    def watched(batch: Batch) -> dict[str, Any]:
        seen.append((batch.n, batch.rows, batch.sizes["ids"][:, 0].tolist()))
        return infer(batch)

    model.infer = watched  # type: ignore[method-assign]
    found = run(make(model, sizes=(4, 8)), "a", "bb", "c" * 20, *"defgh")
    assert model.sizes == [8], "preprocess sees no padding"
    assert [(n, rows) for n, rows, _ in seen] == [(8, 7), (4, 1)]
    assert seen[0][2] == [1, 2, 1, 1, 1, 1, 1, 2], "the padding row is cut to the longest"
    texts = ["a", "bb", "c" * 20, *"defgh"]
    assert found.outputs["total"].tolist() == list(map(total, texts))  # type: ignore[union-attr]


class Scribbler(bp.Model):
    """Both stages change what they were given, and preprocess gives the same array again."""

    framework = "numpy"
    writable = True
    inputs = [bp.Tensor("x", "float32", (2,))]
    features = [bp.Tensor("scale", "float32", (2,)), "x"]
    outputs = [bp.Tensor("y", "float32", (2,))]
    kept = np.full((3, 2), 10, np.float32)

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        batch["x"][:] = -1
        return {"scale": self.kept}

    def infer(self, batch: Batch) -> dict[str, Any]:
        batch["x"][:] *= batch["scale"]
        batch["scale"][:] = 0
        return {"y": batch["x"]}


def test_a_writable_model_changes_nothing_but_its_own_copies() -> None:
    model = Scribbler()
    backends = {Stage.PREPROCESS: PreprocessBackend(model), Stage.INFER: NumpyBackend(model)}
    backend = FusedBackend(spec_of(model), backends, {"preprocess": 16})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for _ in range(2):
        found = backend.launch(3, {"x": x}, {"x": None}, True)
        assert found.outputs["y"].tolist() == (10 * x).tolist()  # type: ignore[union-attr]
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (Scribbler.kept == 10).all()


class Windows(bp.Model):
    """Inputs and features that vary in two dimensions; the answer is the feature's own size."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "int64", (bp.Dim(64), bp.Dim(64)))]
    features = [bp.Tensor("half", "int64", (bp.Dim(64), bp.Dim(64), 1)), "x"]
    outputs = [bp.Tensor("sums", "int64", (2,)), bp.Tensor("sizes", "int64", (4,))]

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        sizes = batch.sizes["x"].tolist()
        return {
            "half": [x[: h // 2, :w, None] for x, (h, w) in zip(batch["x"], sizes, strict=True)]
        }

    def infer(self, batch: Batch) -> dict[str, Any]:
        sums = [batch[name].reshape(batch.n, -1).sum(axis=1) for name in ("half", "x")]
        both = np.concatenate([batch.sizes["half"], batch.sizes["x"]], axis=1)
        return {"sums": np.stack(sums, axis=1), "sizes": both}


def test_every_row_alone_and_in_company() -> None:
    model: Model = Windows()
    spec = spec_of(model)
    assert fused_spec(spec).features == ()
    backends = {Stage.PREPROCESS: PreprocessBackend(model), Stage.INFER: NumpyBackend(model)}
    backend = FusedBackend(spec, backends, {"preprocess": 4})
    rng = np.random.default_rng(5)
    shapes = rng.integers(0, 65, (24, 2))
    rows = [rng.integers(1, 9, shape) for shape in shapes]
    padded = np.zeros((24, *shapes.max(axis=0)), np.int64)
    for row, own in zip(padded, rows, strict=True):
        row[: own.shape[0], : own.shape[1]] = own
    found = backend.launch(24, {"x": padded}, {"x": shapes}, True).outputs
    for at, (row, (h, w)) in enumerate(zip(rows, shapes.tolist(), strict=True)):
        alone = backend.launch(1, {"x": row[None]}, {"x": shapes[at : at + 1]}, True).outputs
        for name in ("sums", "sizes"):
            np.testing.assert_array_equal(found[name][at], alone[name][0])
        assert found["sums"][at].tolist() == [row[: h // 2].sum(), row.sum()]
        assert found["sizes"][at].tolist() == [h // 2, w, h, w]


class Rated(Letters):
    """A text's ids, their sum, and a verdict on it that names the text's length."""

    predictions = [bp.Tensor("sum", "int64"), "ids", "tag"]
    outputs = [bp.Tensor("verdict", "bytes", max_bytes=32)]

    def __init__(self) -> None:
        super().__init__()
        self.rated: list[list[int]] = []

    def infer(self, batch: Batch) -> dict[str, Any]:
        return {"sum": super().infer(batch)["total"]}

    def postprocess(self, batch: Batch) -> dict[str, Any]:
        assert list(batch) == ["tag", "ids", "sum", "by"]
        self.rated.append(batch["tag"].tolist())
        lengths = batch.sizes["ids"][:, 0]
        found: list[Any] = [b"%d of %d" % pair for pair in zip(batch["sum"], lengths, strict=True)]
        for row, total in enumerate(batch["sum"]):
            if total == ord("!"):
                found[row] = InvalidInput("no verdict on this")
        return {"verdict": found}


def test_what_infer_makes_goes_on_to_postprocess_without_the_rows_that_failed() -> None:
    model = Rated()
    backends: dict[Stage, Backend] = {
        Stage.PREPROCESS: PreprocessBackend(model),
        Stage.INFER: NumpyBackend(model),
        Stage.POSTPROCESS: CpuStageBackend(model.postprocess, writable=False),
    }
    backend = FusedBackend(spec_of(model), backends, {"preprocess": 8, "postprocess": 2})
    texts = ["b" * 40, "invalid", "a", "!", "", "wrong", "c" * 3, "run refused"]
    found = run(backend, *texts)
    assert model.rated == [[100, 102], [103, 104], [106]]
    assert sorted(found.failed) == [5]
    assert sorted(found.refused) == [1, 3, 7]
    assert found.refused[3].args == ("no verdict on this",)
    verdicts = found.outputs["verdict"]
    for row in (0, 2, 4, 6):
        assert verdicts[row] == b"%d of %d" % (total(texts[row]), len(texts[row]))
