"""Codec: reads the infer requests for one model and writes their answers, in every wire form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.forms import FORMS, BoundForm, WireForm, WireForms
from batchpool.wire.model_tables import Frame, ModelTables
from batchpool.wire.raw import FixedSizeReader
from batchpool.wire.request import Body, HeaderList, Headers, InferRequest, header_priority


class Codec:
    """The wire forms of one model. Keeps nothing of a request.

    version: the model's version as answers show it.  forms: those that are understood.  Raises
    ConfigError for a spec whose parameter names the protocol keeps for itself.
    """

    __slots__ = ("_bound", "_forms", "_frames", "_tables")

    def __init__(self, spec: ModelSpec, version: str = "1", forms: WireForms = FORMS) -> None:
        tables = self._tables = ModelTables(spec, version)
        self._forms = forms
        self._bound: dict[str, BoundForm] = {form.name: form.bind(tables) for form in forms.entries}
        # Asked for with every answer, so it is found by one look-up.
        self._frames: dict[str, Callable[[InferRequest, int], Frame | None]] = {
            name: bound.frame for name, bound in self._bound.items()
        }

    def parse(self, headers: Headers, body: Body) -> InferRequest:
        """One checked request from its headers and its whole body, already decompressed.

        The rows are views of `body`. Raises only `PoolError`s: InvalidRequest,
        UnsupportedMediaType for the content type, TooLarge for what no slot can hold.
        """
        return self.parse_as(self._forms.of(headers), headers, body, header_priority(headers))

    def parse_as(self, form: WireForm, headers: Headers, body: Body, priority: int) -> InferRequest:
        """`parse` for a caller that has read these headers already.

        form: as `form_of` gives it.  priority: as `header_priority` gives it.
        """
        return self._bound[form.name].parse(headers, body, priority)

    def fixed_size_reader(self, request: InferRequest, size: int) -> FixedSizeReader | None:
        """A reader for the rows of more bodies of `size` bytes under the headers of this request.

        None where a body holds more than its rows, so that each one must be parsed.
        """
        return self._bound[request.form].fixed_size_reader(size)

    def frame(self, request: InferRequest, n: int) -> Frame | None:
        """The answer of n rows without its tensors, which follow in the model's order.

        None where more goes into the answer than the row count.
        """
        return self._frames[request.form](request, n)

    def with_own_outputs(self, request: InferRequest) -> InferRequest:
        """A request that was kept elsewhere, as `parse` would give it: the outputs of one that asks
        for all of them in binary are the model's own, by which `frame` knows it."""
        if request.outputs == self._tables.all_binary:
            request.outputs = self._tables.all_binary
        return request

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None = None,
    ) -> tuple[HeaderList, bytes]:
        """The headers (with content type and length) and the body of a 200 answer.

        outputs: every output asked for, [n, *row shape] in its storage dtype.
        model_parameters: the `parameters` of the answer; absent when None or empty.
        Raises InvalidRequest for BYTES that were asked for as JSON and are not UTF-8.
        """
        return self._bound[request.form].encode(request, outputs, model_parameters)
