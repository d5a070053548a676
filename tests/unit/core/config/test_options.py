"""Options of a model in the file and on the command line, before its class is known."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from batchpool.core.config.flags import PlacedOption, model_of, with_options
from batchpool.core.config.options import OptionText, option_of, texts_of
from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.toml_file import load_toml
from batchpool.core.errors import ConfigError


def options_of(text: str) -> dict[str, Any]:
    return load_toml(f'[[model]]\nimport = "m:A"\n{text}', "pool.toml").models[0].options


def test_a_table_and_one_line_say_the_same() -> None:
    expected = {"path": "a b.onnx", "layers": [1, 2], "of": {"x": 1.5}, "on": True}
    table = """[model.options]
        path = "a b.onnx"
        layers = [1, 2]
        on = true
        [model.options.of]
        x = 1.5
    """
    line = 'options = {path = "a b.onnx", layers = [1, 2], of = {x = 1.5}, on = true}'
    assert options_of(table) == options_of(line) == expected
    assert options_of("") == {}


@pytest.mark.parametrize("wrong", ["3", '["a"]', '{"a b" = 1}', "{day = 2026-01-02}"])
def test_what_is_no_table_of_arguments_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"\[\[model\]\] 1: options = .*: expected a table of"):
        options_of(f"options = {wrong}")


def test_a_table_at_the_top_is_told_its_place() -> None:
    with pytest.raises(ConfigError, match=r"unknown table \[options\]; it is written \[model.opt"):
        load_toml("[options]\nk = 1", "pool.toml")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [("k=5", "k", "5"), ("k=", "k", ""), ("k=a=b", "k", "a=b"), ('k="x, y"', "k", '"x, y"')],
)
def test_an_option_is_a_key_and_all_that_follows(text: str, key: str, value: str) -> None:
    assert option_of(text) == (key, value)
    assert texts_of({"other": value, key: option_of(text)[1]}) == [key]


@pytest.mark.parametrize("text", ["k", "=5", "a b=5", "1=5", "k=\0"])
def test_what_is_no_option_is_told_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        option_of(text)


def placed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--option", action=PlacedOption, default=[])
    return parser.parse_args(argv)


def options(*argv: str, of_file: tuple[ModelConfig, ...] = ()) -> list[dict[str, Any]]:
    args = placed(*argv)
    models = (*of_file, *map(model_of, args.model))
    return [model.options for model in with_options(models, len(of_file), args.option)]


def test_an_option_belongs_to_the_model_before_it() -> None:
    two = ("--model", "a=m:A", "--option", "k=1", "--option", "j=2", "--model", "b=m:A")
    assert options(*two, "--option", "k=3") == [{"k": "1", "j": "2"}, {"k": "3"}]
    of_file = (ModelConfig("m:F", options={"k": 9}),)
    assert options(*two, of_file=of_file) == [{"k": 9}, {"k": "1", "j": "2"}, {}]


def test_an_option_of_the_only_model_needs_no_place_and_wins_over_the_file() -> None:
    assert options("--option", "k=1", "--model", "m:A") == [{"k": "1"}]
    (found,) = options("--option", "k=1", of_file=(ModelConfig("m:F", options={"k": 9, "j": 8}),))
    assert found == {"k": "1", "j": 8}
    assert isinstance(found["k"], OptionText)


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--option k=3: --option k=2 gives the same model 'k'"):
        options("--model", "a=m:A", "--option", "k=2", "--option", "j=1", "--option", "k=3")
    with pytest.raises(ConfigError, match="--option k=3: --option k=2 gives the same model 'k'"):
        options("--option", "k=2", "--model", "a=m:A", "--option", "k=3")


def test_an_option_of_none_of_several_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="--option k=1: 2 models are served; expected it behind"):
        options("--option", "k=1", "--model", "a=m:A", "--model", "m:A")
