"""A lane: the queue pair and the row slots between one client and one model.

`Lane` binds a layout to memory and names its words and columns, for all three sides. The client's
steps on it are in client/lane_client.py, the batcher's in batcher/lane.py, the worker's in
worker/worker.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from batchpool.core.errors import Status
from batchpool.core.layout.segments import MESSAGE_BYTES, Layout, lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of, written_by
from batchpool.shm.arena_column import ArenaColumn
from batchpool.shm.columns import TensorColumn
from batchpool.shm.lane_columns import tensor_columns
from batchpool.shm.ring import Consumer, Producer, fence
from batchpool.shm.segment import Cells, Memory, ring_parts, word

# The batch and the process in which a row failed: the batch's token, the worker's number among
# its model's workers, the worker's pid.
Origin = tuple[int, int, int]
_LARGEST = 2**64 - 1
_ORIGIN = re.compile(rb"\x1e(\d+) (\d+) (\d+)\Z")  # appended to the text of a message


class Word:
    """One u64 word of a segment."""

    __slots__ = ("_at", "_cells")

    def __init__(self, cells: Cells, at: int) -> None:
        self._cells = cells
        self._at = at

    def get(self) -> int:
        return self._cells[self._at]

    def set(self, value: int) -> None:
        self._cells[self._at] = value

    def raise_by(self, n: int) -> None:
        """Add n. After the largest value comes 0 again, since others may have written any value."""
        self._cells[self._at] = (self._cells[self._at] + n) & _LARGEST


class Lane:
    """The words and columns of one lane.

    Header columns come twice: as arrays (`state`) for groups and, where single rows are
    common, as one-dimensional views (`Lane.scalars`) whose stores are three times cheaper.

    features, feature_sizes, predictions, prediction_sizes: of a model that declares them; the other
    lanes have no such columns, and no `stage` where the model has one stage.
    """

    def __init__(
        self,
        spec: ModelSpec,
        memory: Memory,
        layout: Layout,
        fence: Callable[[], None] = fence,
    ) -> None:
        self.spec = spec
        self.memory = memory
        self.layout = layout
        self.slots = layout.slots
        self._fence = fence
        cells = memory.cells()
        for name in (
            "gate",
            "generation",
            "cancels",
            "claimed",
            "lent",
            "refused",
            "refused_share",
            "stale",
        ):
            setattr(self, name, Word(cells, word(layout, name)))
        columns = layout.columns
        self.state = memory.array(columns["state"])
        self.sequence = memory.array(columns["sequence"])
        self.deadline_ns = memory.array(columns["deadline_ns"])
        self.submit_ns = memory.array(columns["submit_ns"])
        self.priority = memory.array(columns["priority"])
        self.flow = memory.array(columns["flow"])
        self.cancel = memory.array(columns["cancel"])
        self.attempt = memory.array(columns["attempt"])
        self.status = memory.array(columns["status"])
        self.message = memory.array(columns["message"])
        self.message_len = memory.array(columns["message_len"])
        self.input_sizes = memory.array(columns["size.in"])
        self.inputs = tensor_columns(memory, layout, "in", spec.inputs)
        self.outputs = tensor_columns(memory, layout, "out", spec.outputs)
        self.parameters = tensor_columns(memory, layout, "par", spec.parameters)
        self.features: dict[str, TensorColumn] = {}
        self.predictions: dict[str, TensorColumn] = {}
        if spec.features or spec.predictions:
            self.stage = memory.array(columns["stage"])
        if spec.features:
            self.feature_sizes = memory.array(columns["size.feat"])
            self.features = tensor_columns(memory, layout, "feat", spec.features)
        if spec.predictions:
            self.prediction_sizes = memory.array(columns["size.pred"])
            self.predictions = tensor_columns(memory, layout, "pred", spec.predictions)

    gate: Word
    generation: Word
    cancels: Word
    claimed: Word
    lent: Word
    refused: Word
    refused_share: Word
    stale: Word

    def of_stage(self, stage: Stage) -> Lane:
        """The lane as one stage sees it: `inputs` are what it reads, `outputs` what it writes."""
        if len(stages_of(self.spec)) == 1:
            return self
        lane = Lane(self.spec, self.memory, self.layout, self._fence)
        known = lane.inputs | lane.features | lane.predictions
        lane.outputs = getattr(lane, written_by(self.spec, stage))
        lane.inputs = {t.name: known[t.name] for t in stage_spec(self.spec, stage).inputs}
        return lane

    @property
    def arena_inputs(self) -> list[ArenaColumn]:
        """The inputs whose rows stand in the arena, in the order in which a run holds them."""
        return [column for column in self.inputs.values() if isinstance(column, ArenaColumn)]

    def scalars(self, name: str) -> Cells:
        """A header column for single loads and stores."""
        return self.memory.scalars(self.layout.columns[name])

    def sq_producer(self) -> Producer:
        return Producer(*ring_parts(self.memory, self.layout, "sq"), fence=self._fence)

    def sq_consumer(self) -> Consumer:
        return Consumer(*ring_parts(self.memory, self.layout, "sq"))

    def cq_producer(self) -> Producer:
        return Producer(*ring_parts(self.memory, self.layout, "cq"), fence=self._fence)

    def cq_consumer(self) -> Consumer:
        return Consumer(*ring_parts(self.memory, self.layout, "cq"))

    def gate_is_open(self) -> bool:
        return self.gate.get() == LaneGate.OPEN

    def write_status(
        self,
        slots: Array,
        status: Status,
        text: str = "",
        origin: Origin | None = None,
        details: bytes = b"",
    ) -> None:
        """Stores the status of these rows; the text is cut so that all takes MESSAGE_BYTES.

        details: of an `InvalidInput`, as JSON, at most DETAILS_BYTES.
        """
        tail = b"\x1d" + details if details else b""
        if origin is not None:
            tail += b"\x1e%d %d %d" % origin
        raw = text.encode(errors="replace")[: MESSAGE_BYTES - len(tail)] + tail
        if raw:
            self.message[slots, : len(raw)] = np.frombuffer(raw, np.uint8)
        self.message_len[slots] = len(raw)
        self.status[slots] = int(status)

    def read_message(self, slot: int) -> str:
        """The error text of a row; "" if it has none."""
        text = _ORIGIN.sub(b"", self._raw_message(slot)).partition(b"\x1d")[0]
        return text.decode(errors="ignore")

    def read_details(self, slot: int) -> bytes:
        """The details of a row that the model refused, as they were written; b"" if none were."""
        return _ORIGIN.sub(b"", self._raw_message(slot)).partition(b"\x1d")[2]

    def read_origin(self, slot: int) -> Origin | None:
        """The origin of a row's error; None if none was written."""
        found = _ORIGIN.search(self._raw_message(slot))
        return None if found is None else (int(found[1]), int(found[2]), int(found[3]))

    def _raw_message(self, slot: int) -> bytes:
        length = min(int(self.message_len[slot]), MESSAGE_BYTES)
        return self.message[slot, :length].tobytes()


def lane_of(spec: ModelSpec, slots: int, memory: Memory) -> Lane:
    """A lane of a model on a memory that holds its layout."""
    return Lane(spec, memory, lane_layout(spec, slots))
