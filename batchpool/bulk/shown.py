"""Rows as the file of bad rows has them: in JSON, and shortened where they are long."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

_VALUE_LENGTH = 1_000  # of a text, of bytes, or of a column's JSON
_ROW_BYTES = 16_000  # of all columns
_CUT_LENGTH = 500


@dataclass(frozen=True)
class Shown:
    """A row for JSON. row: {column: value}, or the text of a row that has no columns. cut: it is
    not whole."""

    row: Any
    cut: bool = False


def shown_text(text: str | bytes) -> Shown:
    """A row that cannot be read: its text, of which a long one is cut."""
    if isinstance(text, bytes):
        text = text[: 4 * _CUT_LENGTH + 4].decode(errors="replace")
    return Shown(_clean(text[:_CUT_LENGTH]), len(text) > _CUT_LENGTH)


def shown_row(values: Mapping[str, Any]) -> Shown:
    """A row by its columns: bytes are {"b64": text}, a long value is the beginning of its text or
    of its JSON, and columns beyond 16 kB are left out."""
    row: dict[str, Any] = {}
    room, cut = _ROW_BYTES, False
    for name, value in values.items():
        if room <= 0:
            return Shown(row, True)
        row[_clean(name)], size, shortened = _value(value)
        room -= size
        cut = cut or shortened
    return Shown(row, cut)


def _value(value: Any) -> tuple[Any, int, bool]:
    """(value for JSON, bytes of its JSON, it is cut)."""
    cut = False
    string = isinstance(value, (str, bytes, bytearray, memoryview))
    if string and len(value) > _VALUE_LENGTH:
        value, cut = value[:_CUT_LENGTH], True
    plain = _plain(value)
    text = msgspec.json.encode(plain, enc_hook=str)
    if len(text) > _VALUE_LENGTH and not string:
        plain, cut = text[:_CUT_LENGTH].decode(errors="ignore"), True
    return plain, len(text), cut


def _plain(value: Any) -> Any:
    """A value of plain types, whose bytes are {"b64": text}."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {_clean(str(name)): _plain(part) for name, part in value.items()}
    return value


def _clean(text: str) -> str:
    """A text without lone surrogates, which are no text."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
