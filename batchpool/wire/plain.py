"""Plain JSON: tensors by name, as people write them, without the protocol's words.

    body                                        answer
    {"x": [[1, 2], [3, 4]]}                     {"y": [[2, 4], [6, 8]]}
    {"x": [1, 2]}                               {"y": [2, 4]}               one row, unwrapped
    {"inputs": {"x": [[1, 2]]}}                 {"outputs": [[2, 4]]}
    {"inputs": [[1, 2]]}                        the same                    a model of one input
    {"instances": [{"x": [1, 2]}, ...]}         {"predictions": [[2, 4], ...]}
    {"instances": [[1, 2], ...]}                the same                    a model of one input

"instances", and "inputs" that is no list of the protocol's objects, are TensorFlow Serving's and
KServe's v1 forms: where the model has one output its value stands alone, else each output has its
name. "parameters", "outputs", a list of names, and "id", which comes back beside the outputs, may
stand beside all of them, but "id" where a tensor of the model has that name. Shapes follow from the
nesting; rows of a dynamic tensor may differ in size. Numbers may be written as 1, 1.0 or 1e0 for
every dtype that holds them. A string is UTF-8 text, {"b64": "..."} stands for any bytes.
https://www.tensorflow.org/tfx/serving/api_rest
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.wire.model_tables import Frame, ModelTables, json_fields
from batchpool.wire.plain_answers import plain_json
from batchpool.wire.plain_reader import PlainReader
from batchpool.wire.request import (
    Body,
    HeaderList,
    Headers,
    InferRequest,
    OutputChoice,
    PlainAnswer,
    header_timeout_ns,
    sooner,
)

# Of rows of different sizes: as large as the largest of them, a few would take any memory.
_PADDED_PER_BYTE, _PADDED_BYTES = 64, 1 << 20


class PlainForm:
    """Plain JSON of one model. name: of the form, which its requests bear.

    hint: the end of a message for a body that is no request, with one that works.
    """

    def __init__(self, tables: ModelTables, name: str) -> None:
        self._spec = tables.spec
        self._name = name
        self._reader = PlainReader(tables)
        self._outputs = {tensor.name: tensor for tensor in tables.spec.outputs}
        self._choices = tuple(OutputChoice(tensor.name, False) for tensor in tables.spec.outputs)
        self.hint = self._reader.hint
        self.recognises = self._reader.recognises

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        """The request of a whole body; `priority` is the header's.

        Raises InvalidRequest or TooLarge, which say what is wrong with it.
        """
        try:
            request_id, inputs, asked, outputs, answer = self._reader.read(body)
            rows = check_rows(
                self._spec,
                inputs,
                asked.values,
                most_padded_bytes=_PADDED_PER_BYTE * len(body) + _PADDED_BYTES,
            )
        except RecursionError:
            raise InvalidRequest("the request's JSON is nested too deeply") from None
        return self.request(
            rows,
            answer,
            sooner(header_timeout_ns(headers), asked.timeout_ns),
            priority or asked.priority,
            tuple(OutputChoice(name, False) for name in outputs) or self._choices,
            request_id,
        )

    def request(
        self,
        rows: Rows,
        answer: PlainAnswer,
        timeout_ns: int | None,
        priority: int,
        choices: tuple[OutputChoice, ...] = (),
        request_id: str | None = None,
    ) -> InferRequest:
        """A request whose answer is plain JSON, whatever form its body had."""
        return InferRequest(
            request_id,
            rows,
            choices or self._choices,
            timeout_ns,
            priority,
            self._name,
            plain=answer,
        )

    def fixed_size_reader(self, size: int) -> None:
        """None: the JSON of each body must be parsed."""

    def frame(self, request: InferRequest, n: int) -> Frame | None:
        """None: every answer is made of its values."""
        return None

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
    ) -> tuple[HeaderList, bytes]:
        """The headers and body of the answer; InvalidRequest for BYTES that are not UTF-8."""
        answer = request.plain
        assert answer is not None, "a plain request says how its answer is written"
        tensors = [self._outputs[choice.name] for choice in request.outputs]
        body = plain_json(tensors, outputs, answer, named=len(self._outputs) > 1)
        if request.id:
            body = b'{"id":%s,%b' % (msgspec.json.encode(request.id), body[1:])
        return json_fields(len(body)), body
