"""The benchmark of embeddings: its texts, its check of every vector, its forms, its peer."""

from __future__ import annotations

import base64
import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from bench.embed import infinity
from bench.embed.__main__ import Way, turn
from bench.embed.bare import spread_evenly
from bench.embed.load import FORMS
from bench.embed.texts_file import Known, WrongVector
from bench.peers.envs import requirements
from bench.support.texts import LONGEST, SHORTEST, make_texts


def known() -> Known:
    right = np.eye(3, 4, dtype=np.float32)
    return Known([b"one", b"two", b"three"], right)


def test_texts_are_short_passages_of_many_lengths() -> None:
    texts = make_texts(2000)
    assert texts == make_texts(2000)
    assert len(set(texts)) == 2000
    words = [len(text.split()) for text in texts]
    assert (min(words), max(words)) == (SHORTEST, LONGEST)
    assert statistics.median(words) == pytest.approx(20, abs=2)
    assert statistics.mean(words) == pytest.approx(26, abs=2)


def test_every_vector_is_compared_with_that_of_its_own_text(tmp_path: Path) -> None:
    known().write(tmp_path)
    found = Known.read(tmp_path)
    assert found.texts == known().texts
    found.check(1, [0, 2, 0, 0.01])  # of any length: the angle counts
    with pytest.raises(WrongVector, match=r"text 1: cosine 0.9\d+"):
        found.check(1, [0, 1, 0, 0.1])
    with pytest.raises(WrongVector, match="text 2: cosine"):  # two rows exchanged
        found.check_all([0, 2, 1], found.right[[0, 1, 2]])
    with pytest.raises(WrongVector, match="text 0"):
        found.check(0, [np.nan] * 4)
    with pytest.raises(WrongVector, match="shape"):
        found.check(0, [1, 0, 0])


@pytest.mark.parametrize("form", list(FORMS))
def test_answers_of_each_form_are_read(form: str) -> None:
    make_body, parse = FORMS[form]
    assert "a text" in json.dumps(make_body("a text"))
    vector = np.array([1, 2, 3], np.float32)
    if form == "infer":
        sizes = {"prompt_tokens": 8, "embedding": vector.nbytes}
        outputs = [
            {"name": name, "parameters": {"binary_data_size": n}} for name, n in sizes.items()
        ]
        told = json.dumps({"outputs": outputs}).encode()
        head = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: %d\r\n\r\n" % len(told)
        body = told + bytes(8) + vector.tobytes()
    else:
        head = b"HTTP/1.1 200 OK\r\n\r\n"
        coded = base64.b64encode(vector.tobytes()).decode()
        body = json.dumps({"data": [{"embedding": coded}]}).encode()
    assert parse(head, body).tolist() == [1, 2, 3]


def test_windows_of_sorted_texts_come_from_everywhere() -> None:
    found = [spread_evenly(number) for number in range(1, 8)]
    assert found == [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]


def test_a_turn_counts_texts_times_and_cpu() -> None:
    seen = {"answers": 4, "seconds": 2.0, "cpu_s": 0.1, "took_ms": [1.0, 2.0, 3.0, 9.0]}
    figures = turn(Way("x", lambda at_once, seconds: seen, None), 1, 2.0)
    assert figures == {"texts/s": 2.0, "p50 ms": 2.5, "p99 ms": 9.0, "CPU ms a text": 25.0}


def test_infinity_is_pinned_and_its_absence_said(tmp_path: Path) -> None:
    lines = requirements(infinity.NAME).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []
    assert "torch==2.13.0+cpu" in lines
    assert "torch==2.13.0" in infinity.pinned("cuda").splitlines()
    assert "setup --device cuda" in infinity.missing("cuda", tmp_path)
    folder = infinity.folder_of("cpu", tmp_path)
    folder.mkdir()
    (folder / "installed").write_text("infinity_emb==0.1\n")
    assert "other versions" in infinity.missing("cpu", tmp_path)
    (folder / "installed").write_text(infinity.pinned("cpu"))
    assert infinity.missing("cpu", tmp_path) == ""
