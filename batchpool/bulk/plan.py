"""BulkPlan: what one run is asked to do, as the command line says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec, Tensor

_LEAST_ROWS, _MOST_ROWS = 1, 65_536
_CHUNK_BYTES = 16 << 20
_BATCHES = 8


@dataclass(frozen=True)
class BulkPlan:
    """One run.

    model: "" for the only one of the pool. inputs, out: paths, - for stdin and stdout. columns: the
    column of each input that the command line gives. keep: columns that go to the output as they
    are. outputs: () for all. chunk_rows: None to choose them. errors: the file of bad rows, "" for
    OUT.errors.jsonl. skips: bad rows do not stop the run. outage_s: how long a pool that does not
    serve is waited for.
    """

    model: str
    inputs: Sequence[str]
    out: str
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Sequence[str] = ()
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    in_format: str | None = None
    out_format: str | None = None
    chunk_rows: int | None = None
    errors: str = ""
    skips: bool = True
    restart: bool = False
    outage_s: float = 300.0


def chosen_outputs(spec: ModelSpec, names: Sequence[str]) -> list[Tensor]:
    """The outputs of a run; ConfigError for a name that the model does not have."""
    known = {tensor.name: tensor for tensor in spec.outputs}
    for name in names:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise ConfigError(
                f"--outputs: model {spec.name!r} has no output {name!r}; it has {listed}"
            )
    return [known[name] for name in dict.fromkeys(names or known)]


def rows_of_a_chunk(spec: ModelSpec, max_batch: int) -> int:
    """Rows of a chunk where nobody says it: whole batches, some of them, and of about 16 MiB."""
    row_bytes = sum(tensor.row_bytes for tensor in (*spec.inputs, *spec.outputs))
    rows = min(max(_CHUNK_BYTES // max(row_bytes, 1), _BATCHES * max_batch), _MOST_ROWS)
    return max(rows // max_batch * max_batch, max_batch, _LEAST_ROWS)
