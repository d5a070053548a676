"""The first look at an input file: how many lines it has, and which of them repeat a custom_id.

It is taken before the first line runs, and again by a process that goes on with the batch of
another: what it finds is a function of the file alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from batchpool.batches.line_file import InputLine, LineFile
from batchpool.control.batch_messages import FaultForm
from batchpool.wire.batch_lines import BatchLine, LineFault, read_line, repeated, too_long

_MOST_FAULTS = 100  # that a batch which has failed tells of
_AT_ONCE, _BYTES_AT_ONCE = 256, 4 << 20
_BLANK_TIMES = 4  # as many lines as there may be requests, blank ones too
_DIGEST_BYTES = 12
_KINDS = {  # by their first bytes
    b"\x1f\x8b": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"\xfd7zXZ": "packed by xz",
    b"BZh": "packed by bzip2",
    b"PK\x03\x04": "a zip archive, or a workbook",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
}


@dataclass(slots=True)
class Survey:
    """total: lines that are not blank. good: those that are requests. repeats: the numbers of lines
    whose custom_id an earlier one has. faults: why the batch cannot run; none where it can."""

    total: int = 0
    good: int = 0
    repeats: set[int] = field(default_factory=set)
    faults: tuple[FaultForm, ...] = ()


def take_survey(
    path: Path, endpoint: str, most_lines: int, is_given_up: Callable[[], bool] = lambda: False
) -> Survey:
    """Look at a whole input. is_given_up: asked now and then; True ends the look early."""
    found, seen, faults = Survey(), set[bytes](), list[FaultForm]()
    with LineFile(path) as lines:
        while not lines.ended:
            some = lines.next_lines(_AT_ONCE, _BYTES_AT_ONCE)
            if is_given_up():
                return found
            if lines.lines > _BLANK_TIMES * most_lines:
                text = f"the file has more than {_BLANK_TIMES * most_lines} lines, blank ones too"
                found.faults = (FaultForm("too_many_lines", text),)
                return found
            for line in some:
                found.total += 1
                if found.total > most_lines:
                    text = f"the file has more than {most_lines} lines (batch_max_lines)"
                    found.faults = (FaultForm("too_many_lines", text),)
                    return found
                try:
                    request = request_of(line, endpoint, frozenset())
                    digest = _digest(request.custom_id)
                    if digest in seen:
                        found.repeats.add(line.number)
                        raise repeated(request.custom_id)
                    seen.add(digest)
                    found.good += 1
                except LineFault as fault:
                    if len(faults) < _MOST_FAULTS:
                        faults.append(
                            FaultForm(fault.code, fault.message, fault.param, line.number)
                        )
    if not found.total:
        faults = [FaultForm("empty_file", "the file has no line; one request a line was expected")]
    if not found.good:
        found.faults = (*_faults_of_kind(path), *faults)
    return found


def _faults_of_kind(path: Path) -> tuple[FaultForm, ...]:
    """The kind of an input without a request, if its first bytes tell it."""
    with open(path, "rb") as file:
        first = file.read(max(map(len, _KINDS)))
    return tuple(
        FaultForm("invalid_file", f"the file is {kind}; lines of JSON in UTF-8 were expected")
        for start, kind in _KINDS.items()
        if first.startswith(start)
    )


def request_of(line: InputLine, endpoint: str, repeats: set[int] | frozenset[int]) -> BatchLine:
    """The request of a line. repeats: as of `Survey`. Raises LineFault for one that is none."""
    if line.raw is None:
        raise too_long()
    request = read_line(line.raw, endpoint)
    if line.number in repeats:
        raise repeated(request.custom_id)
    return request


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(
        custom_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES
    ).digest()
