"""What the connections of one fast road share."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from batchpool.edge.app import discard_bytes
from batchpool.edge.door import VERSION, Door
from batchpool.edge.front import Front
from batchpool.wire.request import HeaderList


class FastRoad:
    """What the connections of one front end share.

    doors: by the path as it is sent.  discard_bytes: how much of a refused body is dropped.
    """

    def __init__(self, front: Front) -> None:
        self.doors: dict[bytes, Door] = {}
        for name, door in front.doors.items():
            for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{VERSION}"):
                self.doors[f"{path}/infer".encode()] = door
        self.aside = front.aside
        self.discard_bytes = discard_bytes(front)
        self._fields: HeaderList | None = None
        self._heads: dict[int, bytes] = {}

    def head(self, status: int, fields: HeaderList) -> bytes:
        """The status line and the fields of every answer; uvicorn makes them anew each second."""
        if fields is not self._fields:
            self._fields = fields
            self._heads.clear()
        head = self._heads.get(status)
        if head is None:
            head = STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % field for field in fields)
            self._heads[status] = head
        return head
