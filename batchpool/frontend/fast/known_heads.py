"""The heads of one connection that need not be parsed again.

Two of them, since a proxy sends the requests of several callers over one connection. To find the
places where heads may differ takes a good part of what it takes to parse one, so it is done for a
head that did not come again as it was, and seldom where it has been of no use several times.
"""

from __future__ import annotations

from batchpool.frontend.fast.known_head import LONG_HEAD_BYTES, KnownHead
from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.request_head import RequestHead

_MOST = 2
_CHANCES = 8  # heads that are examined in vain before few are kept
_SELDOM = 16  # of so many heads one is then

# The known head, the head that arrives now, and where its body begins and ends.
Found = tuple[KnownHead, RequestHead, int, int]


class KnownHeads:
    """The last heads of one connection that were parsed."""

    __slots__ = ("_chances", "_heads", "_last", "_parsed")

    def __init__(self) -> None:
        self._heads: list[KnownHead] = []
        self._last: KnownHead | None = None  # that came
        self._chances = _CHANCES
        self._parsed = 0

    def find(self, data: bytes, at: int) -> Found | None:
        """The request that begins here, if its head is known and its whole body is there."""
        for known in self._heads:
            if data.startswith(known.text, at):
                begin = at + len(known.text)
                end = begin + known.size
                if end > len(data):
                    return None
                self._last = known
                return known, known.head.again(), begin, end
            if not known.is_examined:
                self._chances -= 1
                known.examine()
            if not (known.may_differ and data.startswith(known.prefix, at)):
                continue
            arrived = known.arrived(data, at)
            if arrived is not None:
                head, begin, size = arrived
                end = begin + size
                if end > len(data):
                    return None
                self._chances = _CHANCES
                self._last = known
                return known, head, begin, end
        return None

    def forget(self, known: KnownHead) -> None:
        """Drop a head that means something else by now."""
        self._heads.remove(known)

    def learn(self, request: FastRequest, text: bytes, size: int) -> None:
        """Know the head of a request that was parsed, in place of the one that did not come last.

        text: the bytes behind which the parser, at rest before them, had the whole head and nothing
        of the body. size: of the body.
        """
        parsed = request.parsed
        if parsed is None or not request.keep_alive or len(text) > LONG_HEAD_BYTES:
            return
        heads = self._heads
        self._parsed += 1
        if self._chances <= 0 and self._parsed % _SELDOM:
            heads.clear()
            return
        parsed.rows.tensors.clear()  # where it was refused, they would keep its body
        known = KnownHead(request, parsed, text, size)
        if len(heads) == _MOST:
            heads.remove(heads[0] if heads[1] is self._last else heads[1])
        heads.append(known)
        self._last = known
