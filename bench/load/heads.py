"""The heads of the requests that a load sends: each with its own, or all equal to the byte.

    differing  an X-Request-Id of its own in each request, two orders of the headers in turns, and
               the user agent of a client that people use: what comes through a proxy that traces
    equal      the same bytes again and again, which only a benchmark sends

Figures come from differing heads; those of equal heads may stand beside them. wrk's scripts get
the choice as HEADS (wrk_tally.lua), senders in Python make their requests with `Requests`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping

DIFFERING, EQUAL, BOTH = "differing", "equal", "both"
AGENT = "curl/8.5.0"


def add_option(parser: argparse.ArgumentParser, *, both: bool = True) -> None:
    """`--heads`. both: a run may take both kinds, in turns."""
    parser.add_argument(
        "--heads",
        choices=(DIFFERING, EQUAL, BOTH) if both else (DIFFERING, EQUAL),
        default=DIFFERING,
        help="of the requests: each with an X-Request-Id of its own, or all equal to the byte",
    )


def kinds(chosen: str) -> tuple[str, ...]:
    """The kinds of heads to measure with."""
    return (DIFFERING, EQUAL) if chosen == BOTH else (chosen,)


class Requests:
    """Makes requests of one path. fields: headers without Host and Content-Length. number: of the
    sender, which its ids begin with. kind: DIFFERING or EQUAL."""

    def __init__(
        self, path: str, fields: Mapping[str, str], size: int, number: int, kind: str
    ) -> None:
        line = f"POST {path} HTTP/1.1\r\n"
        told = {"Host": "bench", **fields, "Content-Length": str(size)}
        lines = [f"{key}: {value}\r\n" for key, value in told.items()]
        if kind == EQUAL:
            self._orders = [(f"{line}{''.join(lines)}\r\n".encode(), b"")]
            self._ids: Iterator[bytes] = itertools.repeat(b"")
            return
        agent = f"User-Agent: {AGENT}\r\nAccept: */*\r\n"
        self._orders = [
            (f"{line}{''.join(lines)}{agent}X-Request-Id: ".encode(), b"\r\n\r\n"),
            (
                f"{line}{lines[0]}X-Request-Id: ".encode(),
                f"\r\n{agent}{''.join(reversed(lines[1:]))}\r\n".encode(),
            ),
        ]
        self._ids = (b"%08x%024x" % (number, i) for i in itertools.count())
        self._turn = 0

    def head(self) -> bytes:
        """The next request without its body."""
        name = next(self._ids)
        if not name:
            return self._orders[0][0]
        self._turn ^= 1
        before, behind = self._orders[self._turn]
        return before + name + behind
