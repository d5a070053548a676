"""Tokens to text as they come."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.text.incremental_decoder import IncrementalDecoder
from tests.lazy import library
from tests.unit.text.tokenizers_made import byte_fallback, byte_level, word_piece

library("tokenizers")
KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "word_piece": word_piece}


@cache
def made(kind: str) -> Any:
    return KINDS[kind]()


def special(tokenizer: Any) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(number for number, token in added.items() if token.special)


def pieces(tokenizer: Any, tokens: list[int], cuts: list[int]) -> list[str]:
    """The text of the tokens in parts of these sizes, the last part being what is left."""
    decoder, found, at = IncrementalDecoder(tokenizer.decode, special(tokenizer)), [], 0
    for size in [*cuts, len(tokens)]:
        found.append(decoder.push(tokens[at : at + size]))
        at += size
    return [*found, decoder.end()]


def tokens_of(kind: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, made(kind).get_vocab_size() - 1), max_size=150)


CUTS = st.lists(st.integers(0, 5), max_size=150)


@pytest.mark.parametrize("kind", ["byte_level", "word_piece"])
@settings(max_examples=100, deadline=None)
@given(draw=st.data())
def test_the_pieces_of_any_tokens_are_the_text_of_the_whole(kind: str, draw: st.DataObject) -> None:
    tokens, cuts = draw.draw(tokens_of(kind)), draw.draw(CUTS)
    assert "".join(pieces(made(kind), tokens, cuts)) == made(kind).decode(tokens)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), CUTS)
def test_any_text_comes_whole_out_of_tokens_of_bytes(text: str, cuts: list[int]) -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokens = made(kind).encode(text).ids
        found = pieces(made(kind), tokens, cuts)
        assert "".join(found) == made(kind).decode(tokens)
        assert "\N{REPLACEMENT CHARACTER}" in text or not any("\ufffd" in each for each in found)


@settings(max_examples=60, deadline=None)
@given(tokens_of("byte_fallback"), CUTS)
def test_bytes_that_are_no_text_are_told_as_such(tokens: list[int], cuts: list[int]) -> None:
    found = "".join(pieces(made("byte_fallback"), tokens, cuts))
    whole = made("byte_fallback").decode(tokens)
    assert len(found) <= len(whole) + 1
    assert found.rstrip("\ufffd") == "" or found[0] == whole[0] or "\ufffd" in whole


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_token_makes_the_decoder_read_the_whole_text_again(kind: str) -> None:
    tokenizer, longest = made(kind), 0

    def decode(tokens: Any) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        text: str = tokenizer.decode(tokens)
        return text

    half = tokenizer.encode("é").ids[:1]  # of a character, where there are bytes
    for tokens in (tokenizer.encode("the dog runs " * 300).ids, half * 2000, [10**6] * 500):
        decoder = IncrementalDecoder(decode, special(tokenizer))
        for token in tokens:
            decoder.push([token])
        decoder.push(tokens)
        decoder.end()
    assert longest <= 128


def test_special_tokens_are_not_shown() -> None:
    tokenizer = made("byte_level")
    end = tokenizer.token_to_id("<|end|>")
    tokens = [end, *tokenizer.encode("the dog").ids, end]
    assert "".join(pieces(tokenizer, tokens, [1] * 9)) == "the dog"


def test_half_a_character_is_held_back_until_the_rest_comes() -> None:
    tokenizer = made("byte_level")
    tokens = [tokenizer.token_to_id(each) for each in "âĤ¬"]  # the three bytes of a euro sign
    decoder = IncrementalDecoder(tokenizer.decode, frozenset())
    assert [decoder.push([token]) for token in tokens] == ["", "", "€"]
    assert decoder.push(tokens[:1]) == ""
    assert decoder.end() == "\ufffd"


@pytest.mark.parametrize("size", [1, 2, 4, 5, 70])
def test_tokens_that_come_together_are_shown_up_to_the_last_whole_character(size: int) -> None:
    tokenizer = made("byte_fallback")
    tokens = tokenizer.encode("€" * 100).ids  # "▁" and three bytes for each
    decoder, shown = IncrementalDecoder(tokenizer.decode, frozenset()), ""
    for at in range(0, len(tokens), size):
        shown += decoder.push(tokens[at : at + size])
        assert shown == "€" * ((min(at + size, len(tokens)) - 1) // 3)
    assert decoder.end() == ""
