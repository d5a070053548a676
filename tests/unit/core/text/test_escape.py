"""Texts of strangers: one line, nothing that acts on a terminal, and what can be read is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.text.escape import cut, printable


@given(st.text(st.characters(exclude_categories=())))
def test_the_result_is_one_printable_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.splitlines() in ([shown], [])
    shown.encode()  # no half of a surrogate pair is left


@given(st.text())
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert (printable(text) == text) == text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größer, 模型", "größer, 模型"),
        ("a\nERROR forged", "a\\nERROR forged"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\x9b31m", "a\\x9b31m"),  # the same as ESC [ where C1 is understood
        ("line\u2028line", "line\\u2028line"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_acts_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(max_size=200), st.integers(1, 200))
def test_a_long_text_keeps_its_beginning_and_its_end(text: str, most: int) -> None:
    short = cut(text, most)
    if len(text) <= most:
        assert short == text
    else:
        assert short.startswith(text[: most // 3])
        assert short.endswith(text[-(most - most // 3) :])
        assert f"[{len(text) - most} characters left out]" in short
