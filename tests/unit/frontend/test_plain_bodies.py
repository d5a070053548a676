"""Bodies without the protocol's words: the same bytes on the fast and on the ASGI road."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.unit.frontend.calls import strict
from tests.unit.frontend.frontend_double import request
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Echo, Two
from tests.unit.frontend.roads import Visit, same

MODELS = Affine, Echo, Two
ROWS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


def post(model: str, body: Any, kind: str = "application/json", **headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": kind, **headers} if kind else headers
    return request(f"/v2/models/{model}/infer", raw, headers=fields)


@pytest.mark.parametrize(
    ("sent", "status", "expected"),
    [
        (post("affine", {"x": [[1, 2, 3, 4]]}), 200, {"y": [[3, 5, 7, 9]]}),
        (post("affine", {"x": [1, 2, 3, 4]}, ""), 200, {"y": [3, 5, 7, 9]}),
        (post("affine", {"x": [1, 2, 3, 4]}, "text/plain"), 200, {"y": [3, 5, 7, 9]}),
        (post("affine", {"instances": [[0, 0, 0, 1]]}), 200, {"predictions": [[1, 1, 1, 3]]}),
        (post("two", {"tag": [3], "parameters": {"scale": 2}}), 200, {"same": [3], "scaled": [6]}),
        (
            post("two", {"instances": [{"tag": [3]}, {"tag": [4]}]}), 200,
            {"predictions": [{"same": [3], "scaled": [30]}, {"same": [4], "scaled": [40]}]},
        ),
        (
            post("affine", ROWS.tobytes(), "application/octet-stream"), 200,
            {"y": (2 * ROWS + 1).tolist()},
        ),
        (post("echo", "süß".encode(), "text/plain"), 200, {"text_out": "süß"}),
        (post("echo", b"RIFF", "audio/wav"), 200, {"text_out": "RIFF"}),
        (
            post("affine", ROWS.tobytes(), **{
                "Inference-Header-Content-Length": "0", "Accept": "application/json",
            }),
            200, {"y": (2 * ROWS + 1).tolist()},
        ),
        (
            post("affine", {"z": 1}), 400,
            {
                "error": "model 'affine' has no input 'z'; it has 'x';"
                ' this works: {"x": [[0, 0, 0, 0]]}',
                "code": "invalid_request",
            },
        ),
        (
            post("echo", b"\xff", "image/png"), 400,
            {
                "error": "output 'text_out' is not UTF-8 text, so JSON cannot carry it; ask for it"
                " in the protocol's form with parameters.binary_data true",
                "code": "invalid_request",
            },
        ),
    ],
)  # fmt: skip
@on_loop
async def test_both_roads_answer_alike(sent: bytes, status: int, expected: Any) -> None:
    async def scenario(visit: Visit) -> None:
        for _ in range(2):
            await visit.send(sent)
            await visit.take()

    found = await same(scenario, *MODELS)
    assert found.fast == 2
    for answer in found.answers:
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert strict(answer.partition(b"\r\n\r\n")[2]) == expected


@on_loop
async def test_a_head_that_comes_again_may_have_json_or_octets_behind_it() -> None:
    """Both bodies have one size and equal heads, so that the second head is a known one."""
    body = b'{"x": [[1, 2, 3, 4]]}           '
    assert len(body) == ROWS.nbytes
    octets = [
        post("affine", content, "application/octet-stream", Accept="application/octet-stream")
        for content in (ROWS.tobytes(), body, ROWS.tobytes())
    ]

    async def scenario(visit: Visit) -> None:
        for sent in octets:
            await visit.send(sent)
            await visit.take()

    found = await same(scenario, *MODELS)
    first, plain, last = found.answers
    assert found.known == 2
    assert first.endswith((2 * ROWS + 1).tobytes())
    assert last == first
    assert strict(plain.partition(b"\r\n\r\n")[2]) == {"y": [[3, 5, 7, 9]]}
