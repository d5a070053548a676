"""Options of ready models that nothing can be served with are told before anything is loaded."""

from __future__ import annotations

import pytest

from batchpool.core.errors import ConfigError
from batchpool.model import Model
from batchpool.models.exported import Exported
from batchpool.models.image_classifier import ImageClassifier
from batchpool.models.onnx import Onnx
from batchpool.models.sentence_transformer import SentenceTransformer
from batchpool.models.text_classifier import TextClassifier
from batchpool.worker.options import converted_options


@pytest.mark.parametrize(
    ("model", "option", "least"),
    [
        *((ImageClassifier, name, 1) for name in ("top_k", "resize", "crop", "max_pixels")),
        (ImageClassifier, "threads", 0),
        *((model, "max_bytes", 1) for model in (ImageClassifier, Onnx, TextClassifier)),
        (SentenceTransformer, "max_bytes", 1),
        (SentenceTransformer, "dimensions", 0),
        (TextClassifier, "max_tokens", 0),
        *((model, "max_dim", 1) for model in (Onnx, Exported)),
        (Onnx, "threads", 0),
    ],
)
def test_a_number_that_is_too_small_is_told_with_the_least(
    model: type[Model], option: str, least: int
) -> None:
    value = least - 1
    with pytest.raises(ConfigError, match=rf"option {option} = {value}: expected `int` >= {least}"):
        converted_options(model, {"path": "x", option: value})
    assert converted_options(model, {"path": "x", option: least})[option] == least
