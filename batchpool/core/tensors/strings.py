"""Byte strings and texts as the object arrays of `bytes` that a bytes tensor's rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidRequest, TooLarge

if TYPE_CHECKING:
    from batchpool.core.tensors.spec import Tensor

Array = npt.NDArray[Any]


def object_array(tensor: Tensor, value: Any) -> Array:
    """Lists (nested as the row's shape) or an array of strings; its elements are not checked yet.

    A numpy "S" array has lost trailing NULs before it comes here; object arrays keep them.
    """
    if isinstance(value, (str, bytes)):
        raise InvalidRequest(
            f"input {tensor.name!r} is one {type(value).__name__};"
            " a list of them, one per row, was expected"
        )
    if not isinstance(value, np.ndarray):
        return np.array(_whole(value), dtype=object)
    if value.dtype.kind not in "OSU":
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype {value.dtype.name}; bytes or str was expected"
        )
    return value


def _whole(value: Any) -> Any:
    """Nested lists with buffers as bytes, which numpy takes for elements and not for arrays."""
    if isinstance(value, (list, tuple)):
        return [_whole(element) for element in value]
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def checked_elements(tensor: Tensor, loose: Array) -> Array:
    """The same array with every element as `bytes`; a str means its UTF-8 bytes.

    Raises InvalidRequest for an element of another kind, TooLarge for one over max_bytes.
    """
    assert tensor.max_bytes is not None
    rows = np.empty(loose.size, dtype=object)
    for i, element in enumerate(loose.reshape(-1).tolist()):
        raw = _encoded(tensor, i, element)
        if len(raw) > tensor.max_bytes:
            raise TooLarge(
                f"input {tensor.name!r}: element {i} has {len(raw)} bytes;"
                f" at most {tensor.max_bytes} fit"
            )
        rows[i] = raw
    return rows.reshape(loose.shape)


def _encoded(tensor: Tensor, i: int, element: Any) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"input {tensor.name!r}: element {i} has a lone surrogate, which is no text"
            ) from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidRequest(
        f"input {tensor.name!r}: element {i} is a {type(element).__name__};"
        " bytes or str was expected"
    )
