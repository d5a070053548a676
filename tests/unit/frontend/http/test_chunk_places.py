"""Where a chunked body cannot end: its bytes are cut in any way, and no end is passed over."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http.chunk_places import ChunkPlaces

LAST = b"0\r\n\r\n"
CONTENTS = st.sampled_from([b"a", b"\r\n\r\n", b"0\r\n\r\n", b"\r\n" * 200, b"x" * 300])
EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b";" + b"e" * 200])


def chunk(content: bytes, extension: bytes = b"", digits: int = 1) -> bytes:
    return b"%0*x%b\r\n%b\r\n" % (digits, len(content), extension, content)


def sure_of(stream: bytes, sizes: list[int], most: int = 1 << 40) -> tuple[int, ChunkPlaces]:
    """The sure bytes at the beginning of a stream that comes in reads of these sizes."""
    places, total, at = ChunkPlaces(most), 0, 0
    for size in [*sizes, len(stream)]:
        end = min(len(stream), at + size)
        while at < end:
            length = places.sure_bytes(stream, at, end)
            if not length:
                return total, places
            at += length
            total += length
    return total, places


@given(st.lists(st.tuples(CONTENTS, EXTENSIONS), max_size=5), st.lists(st.integers(1, 40)))
def test_all_before_the_last_chunk_is_sure(
    chunks: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    before = b"".join(chunk(*each) for each in chunks)
    total, places = sure_of(before + LAST + b"GET / HTTP/1.1\r\n\r\n", sizes)
    assert total == len(before) + len(b"0\r\n")
    assert not places.is_over


@given(st.binary(max_size=60), st.lists(st.integers(1, 9)))
def test_the_parser_ends_no_message_within_what_is_sure(noise: bytes, sizes: list[int]) -> None:
    ended = []

    class Ends:
        def on_message_complete(self) -> None:
            ended.append(True)

    stream = chunk(b"ab") + noise
    total, _ = sure_of(stream, sizes)
    parser = httptools.HttpRequestParser(Ends())
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    with_error = False
    try:
        parser.feed_data(stream[:total])
    except httptools.HttpParserError:
        with_error = True
    assert not ended or with_error


@pytest.mark.parametrize("line", [b"0\r\n", b"00\r\n", b"zz\r\n", b"\r\n", b"1\n", b"1" * 16])
def test_nothing_is_sure_behind_a_line_that_is_no_size(line: bytes) -> None:
    line = line if line.endswith(b"\n") else line + b"\r\n"
    assert sure_of(line + b"\r\n\r\n", [])[0] == len(line)


@pytest.mark.parametrize(
    "line", [b"+1\r\n", b"1_0\r\n", b"0x1\r\n", b" 1\r\n", b"-1\r\n", b"1 \r\n"]
)
def test_the_parser_refuses_what_only_int_takes_for_a_size(line: bytes) -> None:
    parser = httptools.HttpRequestParser(object())
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(httptools.HttpParserError):
        parser.feed_data(line)


@pytest.mark.parametrize("sizes", [[], [1] * 5000, [7] * 900])
def test_framing_beyond_its_share_is_told_however_it_is_cut(sizes: list[int]) -> None:
    fine, over = chunk(b"a" * 10, b";" + b"e" * 100), chunk(b"a", b";" + b"e" * 100)
    assert not sure_of(fine * 40, sizes, most=200)[1].is_over
    assert sure_of(over * 40, sizes, most=200)[1].is_over
    assert sure_of(b"1;" + b"e" * 300, sizes, most=200)[1].is_over


def test_empty_lines_within_a_chunk_are_one_piece() -> None:
    """Each was a piece of its own, which took 0.2 s for a megabyte of them."""
    whole = chunk(b"\r\n\r\n" * 16_000)
    assert ChunkPlaces(1 << 16).sure_bytes(whole, 0, len(whole)) == len(whole)


def test_a_piece_has_few_lines_as_each_costs_the_parser_time() -> None:
    many = chunk(b"a") * 1000
    assert ChunkPlaces(1 << 16).sure_bytes(many, 0, len(many)) < 161 * len(chunk(b"a"))
