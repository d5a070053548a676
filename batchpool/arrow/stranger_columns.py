"""Columns of strangers, looked at before anything is validated or made of them.

The length of an array in Arrow is a number in its head. An array of nulls, or of lists of no
element, takes no bytes however long it is: a body of 400 bytes may announce lists of 2**31
elements, which cost gigabytes as soon as somebody asks for their lengths. And the parts of a nested
type may all refer to the same bytes, each of which is validated for itself. So the types are few,
and no array has more elements than the bytes that came have bits.
"""

from __future__ import annotations

from typing import Any

from batchpool.arrow.types import arrow
from batchpool.core.errors import InvalidRequest
from batchpool.core.text.escape import cut

_MOST_PARTS = 32  # of a column's type: as many as any tensor needs, and more
_BITS = 8
_SOME = 64  # elements of a body that has next to no bytes
_SHOWN = 80  # characters of a type in an error


def check_types(schema: Any) -> None:
    """Raise InvalidRequest for a column of a type that no tensor or parameter has."""
    for field in schema:
        kinds = [field.type]
        for parts, kind in enumerate(kinds):
            inner = _parts_of(kind)
            if inner is None or parts > _MOST_PARTS:
                raise InvalidRequest(
                    f"column {field.name[:_SHOWN]!r} has type {cut(str(field.type), _SHOWN)};"
                    " numbers, texts, lists, fixed_size_lists, or a struct of `data` and `shape`,"
                    " were expected"
                )
            kinds += inner


def _parts_of(kind: Any) -> list[Any] | None:
    """The types within a type; None for one that is not taken."""
    pa = arrow()
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if _is_list(kind):
        value = kind.value_type
        return None if pa.types.is_null(value) else [value]
    if pa.types.is_struct(kind):
        return [kind.field(i).type for i in range(min(kind.num_fields, _MOST_PARTS + 1))]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return None if kind.num_fields else []


def check_lengths(batch: Any, n_bytes: int) -> None:
    """Raise InvalidRequest where an array has more elements than so many bytes can hold.

    n_bytes: of the whole body, with its compressed buffers written out. The types were checked.
    Raises pyarrow's ArrowInvalid for lengths that do not fit together.
    """
    batch.validate()  # else a length may be negative, for which there is no exception
    most = _BITS * n_bytes + _SOME
    arrays = list(batch.columns)
    for array in arrays:  # to which what is within one is added
        if len(array) > most:
            raise InvalidRequest(
                f"the body has {n_bytes} bytes and an array of {len(array)} elements, which take"
                " none: an element that takes bytes was expected"
            )
        arrays += _within(array)


def _within(array: Any) -> list[Any]:
    pa = arrow()
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return [array.storage]
    if _is_list(kind):
        return [array.values]
    if pa.types.is_struct(kind):
        return [array.field(i) for i in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        return [array.indices, array.dictionary]
    return []


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
