"""Ready models in one pool: files without code, over HTTP and through the client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import ROOT, Pool, command, serving
from tests.process.ready_folder import tables
from tests.process.web import ask
from tests.unit.models import onnx_files
from tests.unit.models.text_folders import TEXTS

pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.long]  # each worker imports a large library


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return tables(tmp_path_factory.mktemp("ready"))


@pytest.fixture(scope="module")
def pool(models: list[dict[str, Any]]) -> Iterator[Pool]:
    with serving(*models) as pool:
        yield pool


def path_of(models: list[dict[str, Any]], name: str) -> Path:
    """The path of a model; the test is skipped where its library is missing."""
    found = [model["options"]["path"] for model in models if model["name"] == name]
    if not found:
        pytest.skip(f"what the model {name!r} needs is not installed")
    return Path(found[0])


def test_onnx_answers_rows_of_different_sizes_to_the_bit(
    pool: Pool, models: list[dict[str, Any]]
) -> None:
    path_of(models, "masked")
    rows = [np.arange(size, dtype=np.int64) for size in (3, 0, 16, 1, 7)]
    with pool.client() as client:
        found = client.infer("masked", ids=rows, mask=[np.ones_like(row) for row in rows])
        for row, doubled, total in zip(rows, found["doubled"], found["total"], strict=True):
            assert (doubled.tolist(), int(total)) == ((row * 2).tolist(), int(row.sum()))
        with pytest.raises(bp.TooLarge):
            client.infer("masked", ids=[np.arange(17)], mask=[np.arange(17)])


def test_vectors_are_those_of_encode(pool: Pool, models: list[dict[str, Any]]) -> None:
    folder = path_of(models, "vectors")
    library = pytest.importorskip("sentence_transformers")
    encoder = library.SentenceTransformer(str(folder), device="cpu")
    with pool.client() as client:
        texts = [text.encode() for text in TEXTS]
        plain = client.infer("vectors", text=texts)["embedding"]
        query = client.infer("vectors", text=texts, parameters={"prompt_name": "query"})[
            "embedding"
        ]
        with pytest.raises(bp.InvalidInput, match="prompt_name 'no' is not known"):
            client.infer("vectors", text=texts[:1], parameters={"prompt_name": "no"})
    for found, prompt in ((plain, ""), (query, "query : ")):
        expected = encoder.encode(TEXTS, prompt=prompt)
        assert np.sum(found * expected, axis=1).min() > 0.9999
    body = json.dumps({"model": "vectors", "input": TEXTS}).encode()
    usage = ask(pool, "/v1/embeddings", body).object["usage"]
    tokens = sum(len(encoder.tokenizer(text, truncation=True)["input_ids"]) for text in TEXTS)
    assert usage == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_a_bad_text_is_a_400_of_its_own(pool: Pool, models: list[dict[str, Any]]) -> None:
    path_of(models, "sentiment")
    answer = ask(pool, "/v2/models/sentiment/infer", b'{"text": ["good", "bad"]}')
    assert answer.status == 200
    assert {"label", "score", "scores"} == answer.object.keys()
    with pool.client() as client:
        found = client.infer("sentiment", text=[b"good", b"\xff", b"bad"], errors="return")["label"]
    assert isinstance(found[1], bp.InvalidInput)
    assert [found[0].decode(), found[2].decode()] == answer.object["label"]


def test_an_exported_program_answers(pool: Pool, models: list[dict[str, Any]]) -> None:
    path_of(models, "program")
    x = np.arange(28, dtype=np.float32).reshape(7, 4)
    with pool.client() as client:
        assert client.infer("program", x=x)["y"].tolist() == (2 * x).tolist()


def test_a_truncated_picture_among_64_is_refused_alone(
    pool: Pool, models: list[dict[str, Any]]
) -> None:
    path_of(models, "pictures")
    from tests.unit.models.test_pictures import photo, written

    raw = [written(photo(40, 40))] * 64
    raw[17] = raw[17][:-40]
    with pool.client() as client:
        found = client.infer("pictures", image=raw, errors="return")["score"]
    assert [row for row, score in enumerate(found) if isinstance(score, Exception)] == [17]
    assert "image file is truncated" in str(found[17])
    assert found[0].shape == (2,)


def test_a_file_is_served_by_its_path_alone(tmp_path: Path) -> None:
    path = onnx_files.mlp(tmp_path)
    shown = subprocess.run(
        command("check", "--model", f"onnx:{path}", "--option", "threads=1", "--load"),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "model mlp: batchpool.models.onnx:Onnx, numpy" in shown.stdout
    assert f'path = "{path}"'[:50] in shown.stdout
    assert "threads = 1" in shown.stdout
    missing = subprocess.run(
        command("check", "--model", f"onnx:{tmp_path}/no.onnx"),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert missing.returncode == 1
    assert f"there is no file {tmp_path}/no.onnx, which option path names" in missing.stderr
