"""The head of an infer request: its headers, and the facts read from them once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from batchpool.frontend.http.caller import Caller, flow_of_name
from batchpool.wire.forms import WireForm
from batchpool.wire.request import Headers
from batchpool.wire.request_id import REQUEST_ID, TRACEPARENT, chosen_id

_CLIENT_ID = b"x-client-id"


class RequestHead:
    """The facts of a request that are known when its headers are complete.

    headers: with lower-case names; `value` gives one of them sooner. caller: who sent it. flow: as
    core/flows.py has it; rows of different flows get fair shares of a lane. at_ns: CLOCK_MONOTONIC;
    the request's own timeout counts from here. form, priority: as the headers say, once
    `HttpEndpoint.check_head` has read them. admitted: the lane has been asked already, before the
    body was there.

    A plain class, since a compiled dataclass takes several times as long to make.
    """

    __slots__ = (
        "_headers", "_names", "_values", "admitted", "at_ns", "caller", "flow", "form", "priority",
    )  # fmt: skip

    form: WireForm

    def __init__(
        self, headers: Headers, caller: Caller, flow: int, at_ns: int, priority: int = 0
    ) -> None:
        self._headers = headers
        # Of the fields that have other values than `_headers` says: few of them are ever asked for.
        self._names: Sequence[bytes] = ()
        self._values: Sequence[bytes] = ()
        self.caller = caller
        self.flow = flow
        self.at_ns = at_ns
        self.priority = priority
        self.admitted = False

    @property
    def headers(self) -> Headers:
        """All headers, by their names in lower case."""
        if self._names:
            headers = dict(self._headers)
            headers.update(zip(self._names, self._values, strict=True))
            self._headers = headers
            self._names = self._values = ()
        return self._headers

    def value(self, name: bytes) -> bytes | None:
        """One header; None if the request has no such header."""
        names = self._names
        if name in names:
            return self._values[names.index(name)]
        return self._headers.get(name)

    def request_id(self) -> bytes:
        """The request's id; b"" if it has none."""
        return chosen_id(self.value(REQUEST_ID), self.value(TRACEPARENT))

    def again(self) -> RequestHead:
        """A head that arrives now, with the same headers from the same caller."""
        head = RequestHead(self.headers, self.caller, self.flow, time.monotonic_ns(), self.priority)
        head.form = self.form
        return head

    def with_values(self, names: Sequence[bytes], values: Sequence[bytes]) -> RequestHead:
        """A head that arrives now, from the same caller, in which these fields have other values.

        None of them has a say in the form or the priority.
        """
        flow = self.flow
        if _CLIENT_ID in names and not self.caller.key:
            flow = flow_of_name(self.caller.flow, values[names.index(_CLIENT_ID)])
        head = RequestHead(self.headers, self.caller, flow, time.monotonic_ns(), self.priority)
        head._names = names
        head._values = values
        head.form = self.form
        return head

    @classmethod
    def of(cls, headers: Headers, caller: Caller) -> RequestHead:
        """A head that arrives now. Its flow is its caller's, or that of the name that a caller
        without a key gives itself."""
        name = headers.get(_CLIENT_ID)
        flow = flow_of_name(caller.flow, name) if name and not caller.key else caller.flow
        return cls(headers, caller, flow, time.monotonic_ns())
