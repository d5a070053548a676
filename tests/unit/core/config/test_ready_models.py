"""`--model onnx:PATH` is short for a class of batchpool.models, its path and a name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from batchpool.core.config.flags import model_of, with_options
from batchpool.core.config.ready_models import (
    READY_MODELS,
    extras_of,
    misspelt_ready_model,
    name_of_file,
)
from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.toml_file import load_toml
from batchpool.core.errors import ConfigError

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("text", "import_name", "name", "path"),
    [
        ("onnx:fraud.onnx", "onnx:Onnx", "fraud", "fraud.onnx"),
        ("onnx:Net", "onnx:Onnx", "Net", "Net"),
        ("Q1=onnx:/a/b=c.onnx", "onnx:Onnx", "Q1", "/a/b=c.onnx"),
        ("onnx:/a/b=c d.onnx", "onnx:Onnx", "b_c_d", "/a/b=c d.onnx"),
        ("exported:./net.pt2", "exported:Exported", "net", "./net.pt2"),
        (
            "sentence_transformer:m/bge-small-en-v1.5/",
            "sentence_transformer:SentenceTransformer",
            "bge-small-en-v1.5",
            "m/bge-small-en-v1.5/",
        ),
    ],
)
def test_a_short_form_names_class_path_and_name(
    text: str, import_name: str, name: str, path: str
) -> None:
    expected = ModelConfig(f"batchpool.models.{import_name}", name, {"path": path})
    assert model_of(text) == expected


def test_a_class_may_be_named_before_it() -> None:
    assert model_of("small=my_models:Net") == ModelConfig("my_models:Net", "small")
    assert model_of("my_models:Net") == ModelConfig("my_models:Net")
    with pytest.raises(ConfigError, match=r'--model "a b=m:A": expected MODULE:CLASS'):
        model_of("a b=m:A")


def test_a_name_is_legal_in_a_url_or_left_to_the_class() -> None:
    assert [name_of_file(path) for path in (".", "..", "/", "é.onnx", "_x")] == [*[""] * 4, "x"]
    assert len(name_of_file("x" * 200)) == 128


@pytest.mark.parametrize("text", ["models/bge-small", "models/bge-small-en-v1.5", "/m/x", "./x"])
def test_a_path_alone_is_told_the_words_that_go_before_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a path goes behind the word .* onnx:PATH, .*causal_lm"):
        model_of(text)
    with pytest.raises(ConfigError) as of_code:
        model_of("models/scale.Scale")
    assert str(of_code.value).endswith("; write models.scale:Scale")


def test_a_path_must_follow() -> None:
    with pytest.raises(ConfigError, match='--model "onnx:": expected a path behind the colon'):
        model_of("onnx:")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("onx:./fraud.onnx", "onnx:./fraud.onnx"),
        ("sentence-transformer:m/bge", "sentence_transformer:m/bge"),
        ("text_clasifier:m/x", "text_classifier:m/x"),
        ("causal_lm", "causal_lm:PATH"),
        ("models/fraud.onnx", "onnx:models/fraud.onnx"),
        ("net.pt2", "exported:net.pt2"),
        ("resnet50.safetensors", "image_classifier:resnet50.safetensors"),
    ],
)
def test_a_word_that_is_nearly_one_of_them_is_told(text: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f'did you mean "{near}"'):
        model_of(text)
    assert misspelt_ready_model(near) == ""


def test_other_words_are_not_taken_for_misspelt_ones() -> None:
    for text in ("my_models:Scale", "onx", "onx:", "a.b:C"):
        assert misspelt_ready_model(text) == ""


def test_a_path_is_given_once() -> None:
    models = [ModelConfig("a:B", options={"path": "A"}), model_of("onnx:A")]
    with pytest.raises(ConfigError, match='--option path=B: --model names the path "A" already'):
        with_options(models, 1, [(1, "path=B")])
    with pytest.raises(ConfigError, match="leave one of them out"):
        with_options(models[1:], 0, [(0, "path=B")])
    of_file = with_options(models[:1], 1, [(0, "path=B")])
    assert of_file[0].options == {"path": "B"}, "the command line wins over a file"


def test_the_short_form_in_a_file_is_told_what_to_write() -> None:
    expected = 'write batchpool.models.onnx:Onnx, and path = "./a.onnx" in its'
    with pytest.raises(ConfigError, match=expected):
        load_toml('[[model]]\nimport = "onnx:./a.onnx"', "pool.toml")


def test_the_extras_of_ready_models_are_those_of_the_package() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = pyproject["project"]["optional-dependencies"]
    for word, import_name in READY_MODELS.items():
        assert extras_of(import_name) or word in ("onnx", "exported")
        assert {*filter(None, extras_of(import_name).split(","))} <= known.keys()
    assert extras_of("my_models:Scale") == ""
