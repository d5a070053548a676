"""ModelTables: readers, writers and response parts of one model, computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.least_sizes import check_least_sizes
from batchpool.core.tensors.ragged import trimmed
from batchpool.core.tensors.rows import Rows, check_named, check_parameters, fill_defaults
from batchpool.core.tensors.spec import Dim, ModelSpec
from batchpool.wire.classification import Classifier
from batchpool.wire.inputs import InputReader
from batchpool.wire.outputs import OutputWriter
from batchpool.wire.request import Fields, HeaderList, InferRequest, OutputChoice, brief

# Request parameters with a meaning in the protocol; a model cannot declare them.
PROTOCOL_PARAMETERS = frozenset({"priority", "timeout", "binary_data_output"})
RESERVED_PREFIX = "triton_"
_KNOWN_FRAMES = 512


class Frame(NamedTuple):
    """A response without its tensors: header fields, JSON head, and size of the whole body."""

    fields: Fields
    head: bytes
    size: int


class ModelTables:
    """Readers by input name, writers by output name, and the choices of outputs.

    Raises ConfigError for a declared parameter whose name the protocol keeps for itself.
    """

    def __init__(self, spec: ModelSpec, version: str) -> None:
        for parameter in spec.parameters:
            if parameter.name in PROTOCOL_PARAMETERS or parameter.name.startswith(RESERVED_PREFIX):
                raise ConfigError(
                    f"model {spec.name!r}: parameter {parameter.name!r} has a meaning of its own"
                    " in the wire protocol; give it another name"
                )
        self.spec = spec
        self.version = version
        self.readers = {tensor.name: InputReader(tensor) for tensor in spec.inputs}
        self.writers = {tensor.name: OutputWriter(tensor) for tensor in spec.outputs}
        self._size_readers = {
            tensor.sizes_name: InputReader(tensor.row_sizes())
            for tensor in spec.inputs
            if tensor.dynamic
        }
        self._size_writers = {
            tensor.sizes_name: OutputWriter(tensor.row_sizes())
            for tensor in spec.outputs
            if tensor.dynamic
        }
        self._classifiers = {t.name: Classifier(t) for t in spec.outputs if Classifier.fits(t)}
        self._all_writers = {**self.writers, **self._size_writers}
        self.declared = frozenset(parameter.name for parameter in spec.parameters)
        self.float_parameters = frozenset(
            parameter.name
            for parameter in spec.parameters
            if parameter.np_dtype.kind == "f" or parameter.element.is_bfloat16
        )
        outputs = [*self.writers, *self._size_writers]
        self._as_json = {name: OutputChoice(name, False) for name in outputs}
        self._as_bytes = {name: OutputChoice(name, True) for name in outputs}
        self._all_json = tuple(self._as_json[name] for name in self.writers)
        self.all_binary = tuple(self._as_bytes[name] for name in self.writers)
        dims = [dim for tensor in spec.inputs for dim in tensor.shape]
        self._has_named = any(isinstance(dim, Dim) and dim.name for dim in dims)
        self._has_least = spec.has_least_sizes
        self._defaults = (
            check_parameters(spec, {})
            if all(parameter.default is not None for parameter in spec.parameters)
            else None
        )
        name = msgspec.json.encode(spec.name)
        self.response_head = b'"model_name":%s,"model_version":%s,' % (
            name,
            msgspec.json.encode(version),
        )
        self._binary_only = [w for w in self.writers.values() if w.binary_only]
        self._row_sizes = [tensor.row_bytes for tensor in spec.outputs]
        fixed = not any(tensor.is_bytes or tensor.dynamic for tensor in spec.outputs)
        self._framed = fixed and sum(self._row_sizes) > 0
        self._frames: dict[int, Frame] = {}

    def frame(self, request: InferRequest, n: int) -> Frame | None:
        """The part that all responses of n rows have in common.

        None where the response has an id or JSON outputs, or its sizes depend on the values.
        """
        if request.outputs is not self.all_binary or request.id:
            return None
        frame = self._frames.get(n)
        if frame is None and self._framed:
            if len(self._frames) >= _KNOWN_FRAMES:
                self._frames.clear()
            frame = self._frames[n] = self._new_frame(n)
        return frame

    def _new_frame(self, n: int) -> Frame:
        sizes = [n * size for size in self._row_sizes]
        pieces = [
            writer.binary_piece((n, *tensor.max_shape), size)
            for writer, tensor, size in zip(
                self.writers.values(), self.spec.outputs, sizes, strict=True
            )
        ]
        head = b'{%s"outputs":[%s]}' % (self.response_head, b",".join(pieces))
        size = len(head) + sum(sizes)
        return Frame(binary_fields(len(head), size), head, size)

    def reader(self, name: str, seen: Collection[str]) -> InputReader:
        """The reader of an input; InvalidRequest unless it is declared and not yet in `seen`."""
        reader = self.readers.get(name) or self._size_readers.get(name)
        if reader is None:
            expected = ", ".join(map(repr, self.readers))
            raise InvalidRequest(
                f"model {self.spec.name!r} has no input {brief(name)}; it has {expected}"
            )
        if name in seen:
            raise InvalidRequest(f"input {name!r} is given twice")
        return reader

    def rows(self, n: int, tensors: dict[str, Array], parameters: dict[str, Any] | None) -> Rows:
        """The rows of a request; InvalidRequest where an input or a parameter is missing.

        parameters: None or empty for the defaults. The sizes of an input's rows, if they are among
        the tensors, are taken out of them.
        """
        given = self._take_sizes(tensors) if self._size_readers else {}
        complete = len(tensors) == len(self.readers)
        if not complete:
            self._check_missing(tensors)
        sizes = self._differing(tensors, given) if given else {}
        if not complete:
            fill_defaults(self.spec, n, tensors, sizes)
        if self._has_named:
            check_named(self.spec, tensors, sizes)
        if self._has_least:
            check_least_sizes(self.spec, tensors, sizes)
        if not parameters and self._defaults is not None:
            return Rows(n, tensors, self._defaults.copy(), sizes)
        return Rows(n, tensors, check_parameters(self.spec, parameters or {}), sizes)

    def _check_missing(self, tensors: Collection[str]) -> None:
        for tensor in self.spec.inputs:
            if tensor.name not in tensors and tensor.default is None:
                raise InvalidRequest(
                    f"input {tensor.name!r} of model {self.spec.name!r} is missing"
                )

    def _take_sizes(self, tensors: dict[str, Array]) -> dict[str, Array]:
        return {name: tensors.pop(name) for name in self._size_readers if name in tensors}

    def _differing(self, tensors: dict[str, Array], given: dict[str, Array]) -> dict[str, Array]:
        """The sizes of the inputs whose rows differ; each input with sizes is cut to its largest
        row."""
        differing: dict[str, Array] = {}
        for tensor in self.spec.inputs:
            sizes = given.get(tensor.sizes_name)
            if sizes is not None and tensor.name not in tensors:
                raise InvalidRequest(
                    f"input {tensor.sizes_name!r} came without the input {tensor.name!r}"
                )
            if sizes is not None:
                array, own = trimmed(tensor, tensors[tensor.name], sizes)
                tensors[tensor.name] = array
                if own is not None:
                    differing[tensor.name] = own
        return differing

    def check_same_rows(self, name: str, rows: int, first: Iterable[str], n: int) -> None:
        """Raise InvalidRequest for an input with another row count than the first one."""
        if rows != n:
            raise InvalidRequest(
                f"input {name!r} has {rows} rows, but input {next(iter(first))!r} has {n}"
            )

    def all_outputs(self, binary: bool) -> tuple[OutputChoice, ...]:
        """The choices of all outputs in the model's order."""
        if binary:
            return self.all_binary
        for writer in self._binary_only:
            raise _needs_binary(writer)
        return self._all_json

    def answered(
        self, choices: tuple[OutputChoice, ...], outputs: Mapping[str, Array]
    ) -> list[tuple[OutputChoice, OutputWriter, Array]]:
        """The parts of a response in its order: the outputs asked for, then the sizes of those
        whose rows differ, if they were not asked for."""
        if not self._size_writers:
            return [
                self._classified(choice, outputs)
                if choice.classes
                else (choice, self.writers[choice.name], outputs[choice.name])
                for choice in choices
            ]
        every = list(choices)
        for tensor in self.spec.outputs:
            if tensor.sizes_name in outputs and tensor.dynamic:
                name = tensor.sizes_name
                every += [
                    (self._as_bytes if choice.binary else self._as_json)[name]
                    for choice in choices
                    if choice.name == tensor.name and all(other.name != name for other in choices)
                ]
        return [
            self._classified(choice, outputs)
            if choice.classes
            else (choice, self._all_writers[choice.name], outputs[choice.name])
            for choice in every
        ]

    def _classified(
        self, choice: OutputChoice, outputs: Mapping[str, Array]
    ) -> tuple[OutputChoice, OutputWriter, Array]:
        classifier = self._classifiers[choice.name]
        classes = classifier.highest(outputs[choice.name], choice.classes)
        return choice, classifier.writer, classes

    def output(
        self, name: str, binary: bool, seen: Collection[str], classes: int = 0
    ) -> OutputChoice:
        """The choice of one output; InvalidRequest unless it is declared and not in `seen`.

        classes: as of `OutputChoice`; InvalidRequest for an output that has none.
        """
        writer = self._all_writers.get(name)
        if writer is None:
            expected = ", ".join(map(repr, self.writers))
            raise InvalidRequest(
                f"model {self.spec.name!r} has no output {brief(name)}; it has {expected}"
            )
        if name in seen:
            raise InvalidRequest(f"output {name!r} is asked for twice")
        if classes:
            return OutputChoice(name, binary, self._check_classes(name, classes))
        if binary:
            return self._as_bytes[name]
        if writer.binary_only:
            raise _needs_binary(writer)
        return self._as_json[name]

    def _check_classes(self, name: str, classes: int) -> int:
        """The number of classes that there really are, at least 1; InvalidRequest for an output
        that cannot be classified."""
        classifier = self._classifiers.get(name)
        if classifier is None:
            raise InvalidRequest(
                f"output {name!r} cannot be classified: parameter 'classification' is for declared"
                " outputs of numbers whose rows have one size; ask for the output itself"
            )
        return min(classes, max(1, classifier.elements))


def json_fields(size: int) -> HeaderList:
    """The header fields of a response that is JSON of `size` bytes."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]


def binary_fields(head: int, size: int) -> Fields:
    """The header fields of a response of `size` bytes, `head` of which are JSON."""
    return Fields(
        [
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", b"%d" % head),
            (b"content-length", b"%d" % size),
        ]
    )


def _needs_binary(writer: OutputWriter) -> InvalidRequest:
    return InvalidRequest(
        f"output {writer.name!r} is {writer.wire_dtype}, which JSON cannot carry; ask for it with"
        " parameters.binary_data true, or for all outputs with binary_data_output true"
    )
