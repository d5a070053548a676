"""Texts to tokens: limits, settings of the file, and special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.text.tokenizer import Tokenizer
from tests.lazy import library
from tests.unit.text.tokenizers_made import byte_fallback, byte_level, saved

library("tokenizers")


def test_a_text_becomes_the_tokens_of_the_library(tmp_path: Path) -> None:
    made = byte_level()
    found = Tokenizer(saved(made, tmp_path))
    tokens = found.encode("the grüne dog 🐕", 100, special_tokens=True)
    assert tokens == made.encode("the grüne dog 🐕").ids
    assert found.decode(tokens) == "the grüne dog 🐕"
    assert found.size == made.get_vocab_size()


def test_the_tokenizers_own_special_tokens_come_where_they_are_wanted(tmp_path: Path) -> None:
    from tokenizers import processors

    made = byte_fallback()
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    found = Tokenizer(saved(made, tmp_path))
    with_begin = found.encode("the dog", 9, special_tokens=True)
    assert with_begin == [1, *found.encode("the dog", 9, special_tokens=False)]


def test_settings_that_would_cut_or_fill_up_a_text_are_not_followed(tmp_path: Path) -> None:
    made = byte_level()
    made.enable_truncation(2)
    made.enable_padding(length=64)
    found = Tokenizer(saved(made, tmp_path))
    assert found.decode(found.encode("the dog runs", 99, special_tokens=False)) == "the dog runs"


def test_a_long_prompt_is_refused_with_its_tokens(tmp_path: Path) -> None:
    found = Tokenizer(saved(byte_level(), tmp_path))
    tokens = len(found.encode("zyx " * 30, 999, special_tokens=False))
    for text, told in (("zyx " * 30, f"has {tokens} tokens"), ("zyx " * 100_000, "has more than")):
        with pytest.raises(InvalidRequest, match="at most 20: shorten it") as caught:
            found.encode(text, 20, special_tokens=False)
        assert told in str(caught.value)
    with pytest.raises(InvalidRequest, match="has 21 tokens; the model takes at most 20"):
        found.check([1] * 21, 20)


def test_a_text_that_can_never_fit_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read = Tokenizer(saved(byte_level(), tmp_path)), 0
    tokens_of = found._tokens

    def counted(text: str, special_tokens: bool) -> Any:
        nonlocal read
        read += len(text)
        return tokens_of(text, special_tokens)

    monkeypatch.setattr(found, "_tokens", counted)
    with pytest.raises(InvalidRequest):
        found.encode("the dog runs. " * 100_000, 1000, special_tokens=False)
    assert read < 100_000


def test_many_spaces_that_are_few_tokens_are_taken(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    made = Library(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = Tokenizer(saved(made, tmp_path))
    assert found.encode("a" + " " * 200_000 + "a", 2, special_tokens=False) == [0, 0]


@pytest.mark.parametrize("tokens", [[-1], [0, 10**9]])
def test_numbers_that_are_no_tokens_are_refused(tmp_path: Path, tokens: list[int]) -> None:
    found = Tokenizer(saved(byte_level(), tmp_path))
    with pytest.raises(InvalidRequest, match=rf"0 to {found.size - 1} were expected"):
        found.check(tokens, 9)


def test_files_that_are_no_tokenizer_are_told_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'missing\.json' is no file"):
        Tokenizer("missing.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    with pytest.raises(ConfigError, match=r"wrong\.json' cannot be read"):
        Tokenizer(wrong)
    saved(byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="beside the tokenizer cannot be read"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_special_tokens_are_named_by_the_file_beside(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "x": 1}
    found = Tokenizer(saved(byte_level(), tmp_path, **settings))
    assert found.special_names == {"bos_token": "<s>", "eos_token": "</s>"}
