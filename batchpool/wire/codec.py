"""Codec: the wire form of one model; what both HTTP roads call for every infer request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire import msgpack_form, oip
from batchpool.wire.model_tables import Frame, ModelTables
from batchpool.wire.raw import RawAgain, RawForm
from batchpool.wire.request import (
    MSGPACK,
    OIP,
    RAW,
    Body,
    Form,
    HeaderList,
    Headers,
    InferRequest,
    form_of,
    header_priority,
)


class Codec:
    """Reads requests for one model and writes their answers. Keeps nothing of a request.

    version: the model's version as answers show it.  Raises ConfigError for a spec whose
    parameter names the protocol keeps for itself.
    """

    __slots__ = ("_raw", "_tables")

    def __init__(self, spec: ModelSpec, version: str = "1") -> None:
        self._tables = ModelTables(spec, version)
        self._raw = RawForm(self._tables)

    def parse(self, headers: Headers, body: Body) -> InferRequest:
        """One checked request from its headers and its whole body, already decompressed.

        The rows are views of `body`. Raises only `PoolError`s: InvalidRequest,
        UnsupportedMediaType for the content type, TooLarge for what no slot can hold.
        """
        return self.parse_as(form_of(headers), headers, body, header_priority(headers))

    def parse_as(self, form: Form, headers: Headers, body: Body, priority: int) -> InferRequest:
        """`parse` for a caller that has read these headers already.

        form: as `form_of` gives it. priority: as `header_priority` gives it.
        """
        if form is RAW:
            return self._raw.parse(headers, body, priority)
        if form is OIP:
            return oip.parse(self._tables, headers, body, priority)
        return msgpack_form.parse(self._tables, headers, body, priority)

    def again(self, request: InferRequest, size: int) -> RawAgain | None:
        """How to read the rows of more bodies of `size` bytes under the headers of this request;
        None where a body says more than its rows."""
        return self._raw.again(size) if request.form is RAW else None

    def frame(self, request: InferRequest, n: int) -> Frame | None:
        """The answer of n rows without its tensors, which follow as they lie in the model's
        order; None if more goes into it than the row count."""
        return None if request.form is MSGPACK else self._tables.frame(request, n)

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None = None,
    ) -> tuple[HeaderList, bytes]:
        """The headers (with content type and length) and the body of a 200 answer.

        outputs: every output asked for, [n, *row shape] in its storage dtype.
        model_parameters: what the answer's `parameters` say; absent when None or empty.
        Raises InvalidRequest for BYTES that were asked for as JSON and are not UTF-8.
        """
        write = msgpack_form.encode if request.form is MSGPACK else oip.encode
        return write(self._tables, request, outputs, model_parameters)
