"""Control messages: the structs they are built from, and those between clients and supervisor.

A message is a msgpack map: the field `op` holds the struct's tag, every other field is checked
against its type when the message is decoded; `batchpool/control/edges.py` tells which process may
send which message to which. Messages between the supervisor and the pool's own processes are in
`batchpool/control/process_messages.py`.

The specs of models, the server's settings and the status are plain maps: `ModelSpec.from_wire` and
the readers of single fields check them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]
Row = Annotated[int, msgspec.Meta(ge=-1)]


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message."""


class Message(Form, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """A control message. descriptors: the names of those that travel with it, in their order."""

    descriptors: ClassVar[tuple[str, ...]] = ()

    def descriptor_count(self) -> int:
        """The number of file descriptors that travel with this message."""
        return len(self.descriptors)


class ModelForm(Form, frozen=True):
    """One model as clients see it. spec: `ModelSpec.to_wire`. entry: its number in all tables."""

    entry: Natural
    spec: dict[str, Any]
    watermark: float
    request_timeout_s: float
    max_batch: Natural
    batch_sizes: tuple[Natural, ...]
    idempotent: bool
    max_wait_ms: float


class LaneForm(Form, frozen=True):
    """One lane as its client sees it. serial: never used twice. model: the entry. arena_bytes: of
    its arena, 0 for none. digest: of the segment's layout."""

    serial: Natural
    model: Natural
    slots: Natural
    digest: str
    arena_bytes: Natural = 0


# -- client -> supervisor ---------------------------------------------------------------------


class Attach(Message, frozen=True, forbid_unknown_fields=False, tag="attach"):
    """The first message of a client that wants lanes. version: of the shared layouts; a client of
    another version may send fields that are unknown here, and is told of the versions. pinned: GPUs
    are to read and write this client's lanes directly."""

    version: int
    pinned: bool = False


class GetFacts(Message, frozen=True, tag="facts"):
    """Asks for the models and the server's settings as they are now."""


class OpenLane(Message, frozen=True, tag="lane"):
    """Asks for a lane to a model, by its name."""

    model: str


class LeaveLane(Message, frozen=True, tag="left"):
    """The client lets go of a lane that moved. There is no reply."""

    serial: Natural


class GetStatus(Message, frozen=True, tag="status"):
    """Asks for the pool's status."""


class GetBatches(Message, frozen=True, tag="batches"):
    """Asks for the flight recorder."""


class Reload(Message, frozen=True, tag="reload"):
    """Asks for a reload; for root and the pool's user only. wait: the reply comes at its end.
    cancel: cancels the reload under way instead."""

    wait: bool = False
    cancel: bool = False


class Drain(Message, frozen=True, tag="drain"):
    """Drains the pool (true), opens it again (false), or asks how far it is (null); for root and
    the pool's user only."""

    on: bool | None = None


# -- supervisor -> client ---------------------------------------------------------------------


class Refused(Message, frozen=True, tag="error"):
    """The reply to a request that is refused. code: of the error. error: the text."""

    code: str
    error: str


class Attached(Message, frozen=True, tag="attached"):
    """The reply to `Attach`. edition: of the plan; it changes with each reload."""

    descriptors = ("the state page, read-only", "the bell that it rings", "the bell that it hears")

    models: tuple[ModelForm, ...]
    server: dict[str, Any]
    edition: Natural


class Facts(Message, frozen=True, tag="facts"):
    """The reply to `GetFacts`."""

    models: tuple[ModelForm, ...]
    server: dict[str, Any]
    edition: Natural


class LaneOpened(Message, frozen=True, tag="lane"):
    """The reply to `OpenLane`: the fields of the lane, and facts, the model as it is now."""

    descriptors = ("the lane's segment",)

    serial: Natural
    model: Natural
    slots: Natural
    digest: str
    facts: ModelForm
    arena_bytes: Natural = 0


class StatusReply(Message, frozen=True, tag="status"):
    """The reply to `GetStatus`."""

    status: dict[str, Any]


class Batches(Message, frozen=True, tag="batches"):
    """The reply to `GetBatches`: the names of the workers and models that its rows number."""

    descriptors = ("the flight recorder, read-only",)

    workers: tuple[str, ...]
    models: tuple[str, ...]


class ReloadReply(Message, frozen=True, tag="reload"):
    """The reply to `Reload`. done: it was done, or asked for. text: what was done, or why not."""

    done: bool
    text: str


class DrainState(Message, frozen=True, tag="drain"):
    """The reply to `Drain`. answered: no request is under way. rows: those under way."""

    draining: bool
    answered: bool
    rows: Natural


# -- front end <-> supervisor -----------------------------------------------------------------


class FrontendServing(Message, frozen=True, tag="serving"):
    """The front end has its lanes and serves its HTTP socket."""


class PlanChanged(Message, frozen=True, tag="plan"):
    """Models and settings as a reload has made them, sent to each front end that serves. lanes: new
    ones of the front end, already open."""

    descriptors = ("the segment of each lane",)

    models: tuple[ModelForm, ...]
    server: dict[str, Any]
    edition: Natural
    lanes: tuple[LaneForm, ...]

    def descriptor_count(self) -> int:
        return len(self.lanes)
