"""The shapes that are captured as graphs."""

from __future__ import annotations

from typing import Any

import pytest

import batchpool as bp
from batchpool.core.errors import ConfigError
from batchpool.core.scheduler.graph_shapes import GraphShapes, dimension_sizes
from batchpool.model import spec_of

TOKENS = bp.Dim(40, "tokens")


class Ids(bp.Model):
    inputs = [bp.Tensor("x", "int64", (TOKENS,), pad=7), bp.Tensor("by", "int64", (TOKENS, 2))]
    outputs = [bp.Tensor("sum", "int64")]
    cuda_graphs = True
    graph_sizes = {"tokens": [8, 40]}

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        raise NotImplementedError


def test_dimensions_of_one_name_have_one_size_and_others_all_combinations() -> None:
    class Free(Ids):
        inputs = [
            *Ids.inputs,
            bp.Tensor("boxes", "int64", (bp.Dim(20), 4)),
        ]

    rows = list(GraphShapes(spec_of(Free), Free.graph_sizes).all_rows())
    assert rows[0] == {"x": (40,), "by": (40, 2), "boxes": (20, 4)}, "the largest comes first"
    assert [(r["x"], r["by"], r["boxes"]) for r in rows] == [
        ((tokens,), (tokens, 2), (boxes, 4)) for tokens in (40, 8) for boxes in (20, 16)
    ]


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (16, (16,)), (17, (16, 17)), (256, (16, 32, 64, 128, 256))],
)
def test_default_sizes(most: int, sizes: tuple[int, ...]) -> None:
    assert dimension_sizes(most) == sizes


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"words": [8]}, r"names 'words'; the named dynamic dimensions of its inputs are: 'tok"),
        ({"tokens": [16, 32]}, r"'tokens': \[16, 32\]; .* rise to the dimension's maximum, 40"),
        ({"tokens": [16, 16, 40]}, "whole numbers that rise"),
        ({"tokens": [0, 40]}, "whole numbers that rise"),
        ({"tokens": []}, "whole numbers that rise"),
    ],
)
def test_sizes_that_cannot_be_captured(given: dict[str, list[int]], text: str) -> None:
    class Given(Ids):
        graph_sizes = given

    with pytest.raises(ConfigError, match=text):
        spec_of(Given)


def test_rows_are_padded_to_the_next_size_of_each_dimension() -> None:
    shapes = GraphShapes(spec_of(Ids), Ids.graph_sizes)
    assert shapes.names == ("x", "by")
    assert [shapes.padded("by", (n, 2)) for n in (0, 8, 9, 40)] == [
        (8, 2),
        (8, 2),
        (40, 2),
        (40, 2),
    ]
