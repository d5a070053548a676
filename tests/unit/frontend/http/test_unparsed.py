"""Where received bytes are cut: at the same places of the stream, however they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http.unparsed import END, UnparsedBytes

STREAMS = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", END, b"a"]), max_size=40).map(b"".join)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=60)


def ends_of(stream: bytes) -> list[int]:
    """The places behind each CRLF CRLF that overlaps no earlier one."""
    found, at = [], 0
    while (at := stream.find(END, at)) >= 0:
        at += len(END)
        found.append(at)
    return found


@given(STREAMS, SIZES, st.booleans())
def test_cuts_are_places_of_the_stream(stream: bytes, sizes: list[int], waits: bool) -> None:
    unparsed = UnparsedBytes()
    cuts, taken = [], b""

    def take_all() -> bytes:
        got = b""
        while unparsed.size:
            most = unparsed.contiguous()
            length = unparsed.to_end(most)
            got += bytes(unparsed.take(length or most, is_end=length > 0))
            if length:
                cuts.append(len(taken) + len(got))
        return got

    at = 0
    for size in sizes:
        unparsed.append(stream[at : at + size])
        at += size
        if not waits:
            taken += take_all()
    unparsed.append(stream[at:])
    taken += take_all()
    assert taken == stream
    assert cuts == ends_of(stream)
    assert unparsed.held_bytes() == unparsed.size == 0


def test_an_end_beyond_the_limit_is_none() -> None:
    unparsed = UnparsedBytes()
    unparsed.append(b"ab\r\n\r\ncd")
    assert [unparsed.to_end(most) for most in (0, 5, 6, 8)] == [0, 0, 6, 6]
    assert bytes(unparsed.take(4, is_end=False)) == b"ab\r\n"
    assert [unparsed.to_end(most) for most in (0, 1, 2, 4)] == [0, 0, 2, 2]


def test_what_is_held_counts_the_whole_reads() -> None:
    unparsed = UnparsedBytes()
    unparsed.append(b"x" * 10)
    unparsed.append(b"y" * 5)
    unparsed.take(4, is_end=True)
    assert (unparsed.size, unparsed.held_bytes()) == (11, 15)
    unparsed.clear()
    assert (unparsed.size, unparsed.held_bytes(), unparsed.contiguous()) == (0, 0, 0)
