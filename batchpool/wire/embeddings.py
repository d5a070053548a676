"""OpenAI's embeddings: the request's JSON to rows of a model, and its vectors to the answer.

    {"model": "minilm", "input": ["Hello", "World"], "encoding_format": "base64"}
    {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": "..."}, ...],
     "model": "minilm", "usage": {"prompt_tokens": 0, "total_tokens": 0}}

A model embeds if it has one input, bytes of shape (), and one output that is a vector of floats.
An output named `prompt_tokens`, one whole number a row, may stand beside the vector: it says how
many tokens the row took, and `usage` has the sum. Without it `usage` says 0, which stands for
unknown: clients of typed languages refuse an answer without it. An output named `truncated`, a
bool a row, says whether the text was cut: its embedding has a member `truncated` then, which is
no part of OpenAI's API.

base64 is the bytes of little-endian float32, which OpenAI's Python client asks for by itself.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows, check_parameters
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.json_text import no_text
from batchpool.wire.openai import INPUT, MOST_BODY_BYTES
from batchpool.wire.request import Body, brief

TOKENS = "prompt_tokens"  # the output that counts a row's tokens
TRUNCATED = "truncated"  # the output that tells which texts were cut
MOST_INPUTS = 2048  # of one request, as OpenAI has it
_MANY_BYTES = 256 << 10  # of a body whose strings are counted before they are made
_MOST_PARAMETER_BYTES = 64 << 10
_MOST_DIMENSIONS = 1 << 24
_SHOWN_BYTES_MOST = 64 << 10  # of a body that is decoded once more, to tell what came
_SHOWN_CHARACTERS = 60  # of a value in an error
_UNREAD: Any = object()
_MEMBERS = "model, input, encoding_format, dimensions, user, parameters"


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a request. parameters: those that the model declares; no part of OpenAI's API."""

    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=_MOST_DIMENSIONS)] | None = None
    user: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def texts(self) -> list[str]:
        """The inputs in their order."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def binary(self) -> bool:
        """True where the vectors are asked for as base64."""
        return self.encoding_format == "base64"


_DECODER = msgspec.json.Decoder(EmbeddingRequest)


def read_embedding_request(body: Body) -> EmbeddingRequest:
    """The request of a whole body. InvalidRequest or TooLarge say what is wrong, and where."""
    if len(body) > MOST_BODY_BYTES:
        raise TooLarge(
            f"the body has {len(body)} bytes; at most {MOST_BODY_BYTES} are taken here: send fewer"
            " texts at a time"
        )
    if len(body) > _MANY_BYTES:
        # The strings are fewer than the quotes that are not escaped.
        raw = bytes(body)
        if raw.count(b'"') - raw.count(b'\\"') > 2 * MOST_INPUTS + 64:
            raise _too_many("more than")
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if fault := no_text(body):
            member = re.split(r"\W", fault, maxsplit=1)[0]
            error = InvalidRequest(fault)
            known = member in EmbeddingRequest.__struct_fields__
            raise (_about(member, error) if known else error) from None
        raise _refusal(str(exc), body) from None
    if not request.texts:
        raise _about(
            INPUT, InvalidRequest("input is an empty list; at least one text was expected")
        )
    if len(request.texts) > MOST_INPUTS:
        raise _too_many(str(len(request.texts)))
    return request


def _refusal(text: str, body: Body) -> PoolError:
    """The error for JSON that is no request. text: of msgspec."""
    if "`$.input" in text:
        return _no_texts(_decoded_member(body, INPUT))
    if "unknown field" in text:
        name = text.partition("unknown field `")[2].partition("`")[0]
        error = InvalidRequest(f"unknown member {brief(name)}; {_MEMBERS} were expected")
        return _about(name[:80], error)
    if "required field" in text:
        name = text.partition("required field `")[2].partition("`")[0]
        return _about(name, InvalidRequest(f"the member {name!r} is missing"))
    for name in ("model", "encoding_format", "dimensions", "user"):
        if f"`$.{name}" in text:
            expected = {
                "encoding_format": '"float" or "base64"',
                "dimensions": f"a whole number from 1 to {_MOST_DIMENSIONS}",
            }.get(name, "a text")
            value = _decoded_member(body, name)
            came = name if value is _UNREAD else f"{name} is {_as_json(value)}"
            return _about(name, InvalidRequest(f"{came}; {expected} was expected"))
    return InvalidRequest(f"the body is not the JSON of a request for embeddings: {text[:200]}")


def _no_texts(value: Any) -> PoolError:
    """The error for an `input` that is neither a text nor a list of texts."""
    place, expected = INPUT, "a text or a list of texts"
    if isinstance(value, list):
        index = next(i for i, each in enumerate(value) if not isinstance(each, str))
        place, expected, value = f"{INPUT}[{index}]", "a text", value[index]
    came = place if value is _UNREAD else f"{place} is {_as_json(value)}"
    more = ""
    if type(value) is int or isinstance(value, list):
        more = "; lists of token ids are not taken, because the model has its own tokenizer"
    return _about(place, InvalidRequest(f"{came}; {expected} was expected{more}"))


def _decoded_member(body: Body, name: str) -> Any:
    """A member of a request that was refused, for its error; _UNREAD of a long body."""
    if len(body) > _SHOWN_BYTES_MOST:
        return _UNREAD
    try:
        return msgspec.json.decode(body)[name]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # behind the refused member
        return _UNREAD


def _as_json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _too_many(count: str) -> PoolError:
    if count == "more than":
        count = f"{count} {MOST_INPUTS}"
    text = f"{count} texts; one request takes at most {MOST_INPUTS}: send them in several"
    return _about(INPUT, TooLarge(text))


def _about(member: str, error: PoolError) -> PoolError:
    error.param = member
    return error


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """The tensors of a model that embeds. tokens: None where it does not count them. truncated:
    None where it does not say which texts it cut."""

    spec: ModelSpec
    text: Tensor
    vector: Tensor
    tokens: Tensor | None
    truncated: Tensor | None = None

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return self.vector.max_shape[0]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that an answer needs."""
        beside = [tensor.name for tensor in (self.tokens, self.truncated) if tensor is not None]
        return [self.vector.name, *beside]

    @classmethod
    def of(cls, spec: ModelSpec) -> EmbeddingModel | None:
        """The view of a model that embeds; None for any other."""
        if len(spec.inputs) != 1 or any(p.default is None for p in spec.parameters):
            return None
        (text,) = spec.inputs
        counting = [t for t in spec.outputs if t.name == TOKENS]
        telling = [t for t in spec.outputs if t.name == TRUNCATED]
        vectors = [t for t in spec.outputs if t.name not in (TOKENS, TRUNCATED)]
        if len(vectors) != 1 or not text.is_bytes or text.shape:
            return None
        (vector,) = vectors
        is_floats = vector.element.is_bfloat16 or vector.np_dtype.kind == "f"
        if not is_floats or len(vector.shape) != 1 or vector.dynamic:
            return None
        tokens = counting[0] if counting else None
        if tokens is not None and (tokens.shape or tokens.np_dtype.kind not in "iu"):
            return None
        truncated = telling[0] if telling else None
        if truncated is not None and (truncated.shape or truncated.dtype != "bool"):
            return None
        return cls(spec, text, vector, tokens, truncated)

    def rows(self, request: EmbeddingRequest) -> Rows:
        """The rows of a request. InvalidRequest or TooLarge tell which text cannot be one."""
        if request.dimensions not in (None, self.dimensions):
            raise _about(
                "dimensions",
                InvalidRequest(
                    f"dimensions is {request.dimensions}; the vectors of model {self.spec.name!r}"
                    f" have {self.dimensions}, and cannot be shortened"
                ),
            )
        texts = request.texts
        array = np.empty(len(texts), dtype=object)
        for row, text in enumerate(texts):
            array[row] = self._element(text, row if len(texts) > 1 else None)
        return Rows(len(texts), {self.text.name: array}, self._parameters(request))

    def _element(self, text: str, row: int | None) -> bytes:
        raw = text.encode()
        assert self.text.max_bytes is not None
        if len(raw) <= self.text.max_bytes:
            return raw
        place = INPUT if row is None else f"{INPUT}[{row}]"
        error = TooLarge(
            f"{place} has {len(raw)} bytes; at most {self.text.max_bytes} are taken (max_bytes in"
            " the model)"
        )
        error.row = row
        raise _about(INPUT, error)

    def _parameters(self, request: EmbeddingRequest) -> dict[str, Any]:
        size = len(memoryview(request.parameters))
        if size > _MOST_PARAMETER_BYTES:
            text = f"parameters has {size} bytes; at most {_MOST_PARAMETER_BYTES} are taken"
            raise _about("parameters", TooLarge(text))
        try:
            given = msgspec.json.decode(request.parameters, type=dict[str, Any] | None)
            return check_parameters(self.spec, given or {})
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            error: PoolError = InvalidRequest(
                "parameters has a number that no float64 holds"
                if "out of range" in str(exc)
                else "parameters: an object was expected"
            )
        except (InvalidRequest, TooLarge) as exc:
            error = exc
        raise _about("parameters", error)


def embedding_model(spec: ModelSpec) -> EmbeddingModel:
    """The view of a model that embeds. Raises InvalidRequest for any other."""
    model = EmbeddingModel.of(spec)
    if model is None:
        error = InvalidRequest(
            f"model {spec.name!r} makes no embeddings: one input, bytes of shape (), and one"
            f" output, a vector of floats, perhaps with {TOKENS!r} beside it, were expected; ask"
            f" it at /v2/models/{spec.name}/infer"
        )
        raise _about("model", error)
    return model


def embedding_answer(
    model: EmbeddingModel, outputs: Sequence[Mapping[str, Array]], *, binary: bool
) -> bytes:
    """The body of an answer. outputs: [n, *row shape] each, of one window of rows after another."""
    vectors = (row for part in outputs for row in _vectors(model.vector, part, binary))
    cut: set[int] = set()
    if model.truncated is not None:
        every = np.concatenate([part[model.truncated.name] for part in outputs])
        cut = set(np.flatnonzero(every).tolist())
    items = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b%b}'
        % (index, vector, b',"truncated":true' if index in cut else b"")
        for index, vector in enumerate(vectors)
    )
    tokens = 0
    if model.tokens is not None:
        tokens = sum(max(0, int(part[model.tokens.name].sum())) for part in outputs)
    return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
        items,
        msgspec.json.encode(model.spec.name),
        msgspec.json.encode({"prompt_tokens": tokens, "total_tokens": tokens}),
    )


def _vectors(tensor: Tensor, outputs: Mapping[str, Array], binary: bool) -> Iterator[bytes]:
    array = outputs[tensor.name]
    if tensor.element.is_bfloat16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if not binary:
        return (msgspec.json.encode(row.tolist()) for row in array)
    array = np.ascontiguousarray(array, dtype="<f4")
    return (b'"%b"' % binascii.b2a_base64(row.data, newline=False) for row in array)
