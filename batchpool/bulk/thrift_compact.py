"""Structs of Thrift's compact protocol, in which Parquet has its metadata, read and written.

A struct is {field: (type, value)}, in the order of its fields. Values are kept as they are:
whole numbers as int, truth values as None (their type says which), doubles as their 8 bytes, lists
and sets as (type of the elements, values), maps as ((type, type), [(key, value), ...]).
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_WHOLE = (I16, I32, I64)
_LONG_LIST = 15  # its size follows the header
_DOUBLE_BYTES = 8

Struct = dict[int, tuple[int, Any]]


class WrittenStructs:
    """The structs of a list, as bytes already: of many, they take a tenth of the memory."""

    def __init__(self) -> None:
        self.n = 0
        self.content = bytearray()

    def add(self, struct: Struct) -> None:
        _put_struct(self.content, struct)
        self.n += 1


def read_struct(content: bytes) -> Struct:
    """The struct at the beginning of the content. ValueError for what is none."""
    try:
        return _Input(content).struct()
    except IndexError:
        raise ValueError("the metadata ends within a struct") from None


def written_struct(struct: Struct) -> bytes:
    """A struct as bytes."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


class _Input:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        field = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            field = field + delta if delta else self._whole()
            fields[field] = (kind, None if kind in (TRUE, FALSE) else self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _WHOLE:
            return self._whole()
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            header = self._byte()
            n, inner = header >> 4, header & 15
            if n == _LONG_LIST:
                n = self._unsigned()
            return inner, [self._value(inner) for _ in range(n)]
        if kind in (TRUE, FALSE, BYTE):  # truth values in lists take a byte each
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(_DOUBLE_BYTES)
        if kind == MAP:
            n = self._unsigned()
            kinds = divmod(self._byte(), 16) if n else (0, 0)
            return kinds, [tuple(map(self._value, kinds)) for _ in range(n)]
        raise ValueError(f"the metadata has a value of the unknown type {kind}")

    def _byte(self) -> int:
        found = self._content[self._at]
        self._at += 1
        return found

    def _bytes(self, n: int) -> bytes:
        start, self._at = self._at, self._at + n
        if self._at > len(self._content):
            raise IndexError(self._at)
        return self._content[start : self._at]

    def _unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def _whole(self) -> int:
        found = self._unsigned()
        return found >> 1 ^ -(found & 1)


def _put_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for field, (kind, value) in struct.items():
        if 0 < field - last <= 15:
            out.append(field - last << 4 | kind)
        else:
            out.append(kind)
            _put_whole(out, field)
        if value is not None:
            _put(out, kind, value)
        last = field
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _WHOLE:
        _put_whole(out, value)
    elif kind == BINARY:
        _put_unsigned(out, len(value))
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (LIST, SET):
        inner, values = value
        n = values.n if isinstance(values, WrittenStructs) else len(values)
        out.append(min(n, _LONG_LIST) << 4 | inner)
        if n >= _LONG_LIST:
            _put_unsigned(out, n)
        if isinstance(values, WrittenStructs):
            out += values.content
            return
        for one in values:
            _put(out, inner, one)
    elif kind == MAP:
        kinds, pairs = value
        _put_unsigned(out, len(pairs))
        if pairs:
            out.append(kinds[0] << 4 | kinds[1])
        for pair in pairs:
            for inner, one in zip(kinds, pair, strict=True):
                _put(out, inner, one)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _put_unsigned(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_whole(out: bytearray, value: int) -> None:
    _put_unsigned(out, value << 1 if value >= 0 else ~value << 1 | 1)
