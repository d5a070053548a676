"""Prompts and generated texts of one model."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.text import Text
from batchpool.text.text_model import TextModel
from tests.lazy import library
from tests.unit.text.test_chat_template import CHATML, HI
from tests.unit.text.tokenizers_made import END, byte_level, saved

library("tokenizers")


def model(folder: Path, template: str = CHATML, most_tokens: int = 200) -> TextModel:
    return TextModel(Text(str(saved(byte_level(), folder)), template), most_tokens)


def test_prompts_are_texts_tokens_or_chats(tmp_path: Path) -> None:
    it = model(tmp_path)
    tokens = it.prompt("the dog")
    assert it.prompt(tokens.tolist()).tolist() == tokens.tolist()
    assert it.has_chats
    text = it.tokenizer.decode(it.chat(HI).tolist())
    assert text.endswith("user\nHi <b><|im_end|>\n<|im_start|>assistant\n")
    assert not model(tmp_path, "").has_chats


def test_prompts_without_tokens_are_refused(tmp_path: Path) -> None:
    for prompt in ("", []):
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            model(tmp_path).prompt(prompt)
    with pytest.raises(InvalidRequest, match="make an empty prompt"):
        model(tmp_path, "{{ '' }}").chat(HI)
    with pytest.raises(InvalidRequest, match="at most 20"):
        model(tmp_path, most_tokens=20).chat([{"role": "user", "content": "zyx" * 50}])
    least = TextModel(Text(str(saved(byte_level(), tmp_path)), CHATML), 200, 3)
    assert least.prompt([1, 2, 3]).tolist() == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="has 2 tokens; the model takes at least 3"):
        least.prompt([1, 2])


def generated(it: TextModel, text: str, stops: list[str], size: int) -> tuple[list[str], Any]:
    found = it.generated(stops)
    tokens = it.tokenizer.encode(text + END, 999, special_tokens=False)
    pieces = [found.push(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    return [*pieces, found.end()], found


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_a_text_ends_before_its_stop_string(tmp_path: Path, size: int) -> None:
    it = model(tmp_path)
    pieces, found = generated(it, "a zebra 🐕 runs. Then", ["s. T"], size)
    assert ("".join(pieces), found.stopped) == ("a zebra 🐕 run", True)
    whole, other = generated(it, "a zebra 🐕 runs. Then", ["runs.T", "Then "], size)
    assert ("".join(whole), other.stopped) == ("a zebra 🐕 runs. Then", False)


def test_tokens_are_counted_up_to_the_stop_string_in_whatever_parts_they_come(
    tmp_path: Path,
) -> None:
    it = model(tmp_path)
    counts = {generated(it, "xyzzy. more", ["y."], size)[1].tokens for size in (1, 3, 50)}
    assert counts == {len(it.tokenizer.encode("xyzzy.", 99, special_tokens=False))}
    tokens = len(it.tokenizer.encode("xyzzy. more" + END, 99, special_tokens=False))
    assert generated(it, "xyzzy. more", [], 3)[1].tokens == tokens


def test_a_stop_string_may_be_complete_with_the_end(tmp_path: Path) -> None:
    it = model(tmp_path)
    found = it.generated(["\N{REPLACEMENT CHARACTER}"])
    assert found.push(it.tokenizer.encode("aé", 9, special_tokens=False)[:-1]) == "a"
    assert (found.end(), found.stopped) == ("", True)


@pytest.mark.parametrize("missing", ["tokenizers", "jinja2"])
def test_a_library_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    path = str(saved(byte_level(), tmp_path))
    monkeypatch.setitem(sys.modules, missing, None)
    real = builtins.__import__

    def imported(name: str, *rest: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises(ConfigError, match=rf"needs the package {missing}.*'batchpool\[text\]'"):
        TextModel(Text(path, CHATML), 9)
