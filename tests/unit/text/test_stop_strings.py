"""Stop strings across the borders of pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.text.stop_strings import StopScanner

LETTERS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


def shown(text: str, stops: list[str], cuts: list[int]) -> tuple[str, bool]:
    scanner, found, at = StopScanner(stops), [], 0
    for size in [*cuts, len(text)]:
        found.append(scanner.push(text[at : at + size]))
        at += size
    return "".join([*found, scanner.end()]), scanner.found


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(LETTERS, STOPS, st.lists(st.integers(0, 4), max_size=30))
def test_the_pieces_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    assert shown(text, stops, cuts) == expected(text, stops)


@settings(max_examples=300, deadline=None)
@given(LETTERS, STOPS)
def test_no_beginning_of_a_stop_string_is_shown_before_it_is_none(
    text: str, stops: list[str]
) -> None:
    scanner, seen = StopScanner(stops), ""
    for at, letter in enumerate(text):
        seen += scanner.push(letter)
        if scanner.found:
            break
        held = text[len(seen) : at + 1]
        assert not held or any(stop.startswith(held) for stop in stops)
        rest = text[: at + 1]
        longest = max(n for s in stops for n in range(len(s)) if rest.endswith(s[:n]))
        assert len(held) == longest


def test_text_without_stop_strings_is_shown_at_once() -> None:
    scanner = StopScanner([])
    assert (scanner.push("a"), scanner.end(), scanner.found) == ("a", "", False)


def test_nothing_follows_a_stop_string() -> None:
    scanner = StopScanner(["."])
    assert [scanner.push("a.b"), scanner.push("c"), scanner.end()] == ["a", "", ""]
