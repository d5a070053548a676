"""Front: what one front end serves and what it answers besides infer. No HTTP library here.

live    200 while the process runs
ready   200 when the pool was started, is not draining, its batcher is not stuck, and every
        model's lane is open and served by a worker; else 503 with the reason. Overload does
        not make it unready
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from batchpool.client.lane_client import Port
from batchpool.client.loop import Reactor
from batchpool.client.session import ModelFacts
from batchpool.core.errors import Draining, NotFound, NotReady, PoolError
from batchpool.core.layout.states import PoolState
from batchpool.frontend.asgi.infer import Aside
from batchpool.frontend.dashboard.broadcaster import Broadcast
from batchpool.frontend.dashboard.sampler import Lookout
from batchpool.frontend.http.access_log import AccessLog
from batchpool.frontend.http.body_budget import Bodies
from batchpool.frontend.http.metrics import DoorMeter
from batchpool.frontend.http.response import Answer, json_answer, refusal
from batchpool.frontend.service.endpoint import VERSION, Door
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.prometheus import Scrape
from batchpool.shm.stats.counters import NO_MODEL, Meters
from batchpool.shm.stats.flight_recorder import Recorder
from batchpool.wire import metadata as objects

_MIB = 2**20
_BODIES = 8  # of the largest size may arrive at the same time where nothing else is said


class Front:
    """The doors of one attached session. stopping: set when this front end takes its leave.

    meters: the pool's, in which this front end's rows are those of `number`. recorder: its flight
    recorder. no_model: counts requests for models that there are not.
    """

    def __init__(
        self, reactor: Reactor, meters: Meters, recorder: Recorder, number: int = 0
    ) -> None:
        session = reactor.session
        self.max_body_bytes: int = session.server["max_body_mib"] * _MIB
        self.bodies = Bodies(_most_bodies_bytes(session.server))
        self.stopping = False
        self.aside = Aside()
        self.access = AccessLog(session.server)
        self.meters = meters
        self.recorder = recorder
        gpus, version = Gpus(), package_version()
        self.scrape = Scrape(meters, gpus, version)
        self.has_page: bool = session.server["page"]
        self.broadcast = Broadcast(Lookout(session, meters, recorder, gpus, self.aside, version))
        self.no_model = self._meter(number, NO_MODEL)
        self.doors: dict[str, Door] = {}
        self.paths: dict[bytes, Door] = {}  # by an infer request's path as it is sent
        self._number = number
        self.session = session
        self._reactor = reactor
        self._server = json_answer(objects.server_metadata(package_version()))
        self._set_doors()
        self._describe()

    def leave(self) -> None:
        """Take leave: not ready any more, and nobody is kept here by a stream."""
        self.stopping = True
        self.broadcast.end("the server is shutting down")

    def learn(self) -> None:
        """The session has learnt other facts: go by them from now on."""
        session = self._reactor.session
        self.max_body_bytes = session.server["max_body_mib"] * _MIB
        self.bodies.most_bytes = _most_bodies_bytes(session.server)
        self.access.learn(session.server)
        self._set_doors()
        for name, door in self.doors.items():
            door.learn(session.models[name], self.max_body_bytes)
        self._describe()

    def _set_doors(self) -> None:
        """A door to each model's port. Where that is another port now, so is the door; what is at
        the one before is finished there."""
        before, self.doors = self.doors, {}
        for name, facts in self._reactor.session.models.items():
            port = self._reactor.session.ports.get(name)
            door = before.get(name)
            if port is not None and (door is None or door.port is not port):
                self.doors[name] = self._new_door(facts, port)
            elif door is not None:
                self.doors[name] = door
        for name, door in before.items():
            door.meter = self.meter(name)  # its words may soon be another model's
        self.paths.clear()
        for name, door in self.doors.items():
            for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{VERSION}"):
                self.paths[f"{path}/infer".encode()] = door

    def _new_door(self, facts: ModelFacts, port: Port) -> Door:
        meter = self._meter(self._number, facts.index)
        return Door(facts, port, self._reactor, self.max_body_bytes, meter, self.door_after)

    def door_after(self, door: Door) -> Door:
        """The door of the same model, whose port has moved. NotFound if it is no more."""
        name = door.facts.spec.name
        if self.doors.get(name) is door:
            self._reactor.listen()  # other lanes are sent before the gates of these say so
        after = self.door(name)
        if after is door:
            raise NotReady(f"model {name!r} is being replaced; send it again")
        return after

    def _describe(self) -> None:
        self._models = {
            name: json_answer(objects.model_metadata(door.facts.spec, (VERSION,)))
            for name, door in self.doors.items()
        }
        self._configs = {
            name: json_answer(
                objects.model_config(
                    door.facts.spec,
                    door.facts.max_batch,
                    round(door.facts.max_wait_ms * 1000),
                    door.facts.batch_sizes,
                )
            )
            for name, door in self.doors.items()
        }

    def _meter(self, number: int, entry: int) -> DoorMeter:
        return DoorMeter(self.meters.cells, self.meters.place("frontend", number, entry))

    def meter(self, model: str) -> DoorMeter:
        """Where requests for this name are counted."""
        door = self.doors.get(model)
        return self.no_model if door is None else door.meter

    def door(self, model: str, version: str = VERSION) -> Door:
        """The door of a model; NotFound names the models or the version there are."""
        door = self.doors.get(model)
        if door is None:
            known = ", ".join(map(repr, self.doors)) or "none"
            raise NotFound(f"there is no model {model!r}; the server has {known}")
        if version != VERSION:
            raise NotFound(f"model {model!r} has no version {version!r}; it has {VERSION!r}")
        return door

    # -- answers ------------------------------------------------------------------------

    def root(self) -> Answer:
        """GET /: where to go from here."""
        return json_answer(
            {
                "name": "batchpool",
                "version": package_version(),
                "api": "/v2",
                "protocol": "Open Inference Protocol v2",
                "models": [f"/v2/models/{name}" for name in self.doors],
                "documentation": "README.md of batchpool",
            }
        )

    def server_metadata(self) -> Answer:
        return self._server

    def live(self) -> Answer:
        return json_answer(objects.live())

    def ready(self) -> Answer:
        try:
            self._check_ready()
        except PoolError as exc:
            return refusal(exc, objects.ready(False))
        return json_answer(objects.ready(True))

    def model_metadata(self, model: str, version: str = VERSION) -> Answer:
        return self._models[self.door(model, version).facts.spec.name]

    def model_config(self, model: str, version: str = VERSION) -> Answer:
        return self._configs[self.door(model, version).facts.spec.name]

    def model_ready(self, model: str, version: str = VERSION) -> Answer:
        door = self.door(model, version)
        try:
            self._check_leaving()
            self._check_batcher()
            door.check_open()
        except PoolError as exc:
            return refusal(exc, objects.model_ready(model, False))
        return json_answer(objects.model_ready(model, True))

    # -- readiness ----------------------------------------------------------------------

    def _check_leaving(self) -> None:
        if self._reactor.over:
            raise self._reactor.session.stopped()
        state = self._reactor.session.board.state.get()
        if self.stopping or state in (PoolState.DRAINING, PoolState.STOPPED):
            raise Draining("the server takes no new requests")

    def _check_ready(self) -> None:
        self._check_leaving()
        if self._reactor.session.board.state.get() != PoolState.READY:
            raise NotReady("the server is starting")
        if not self.doors:
            raise NotReady("the server has no models")
        self._check_batcher()
        for door in self.doors.values():
            door.check_open()

    def _check_batcher(self) -> None:
        if self._reactor.session.board.stalled.get():
            raise NotReady("the server's batcher makes no progress")


def _most_bodies_bytes(server: Mapping[str, Any]) -> int:
    most_mib: int = server["max_bodies_mib"] or _BODIES * server["max_body_mib"]
    return most_mib * _MIB


Ask = Callable[..., Answer]


def package_version() -> str:
    """The installed version of batchpool; "unknown" for a source tree that is not installed."""
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "unknown"
