"""The environment that all servers of a run share, and a server started in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.load.heads import DIFFERING
from bench.peers.envs import Envs
from bench.peers.load import Questions, Wrk, compare, measure, serves
from bench.peers.roster import Peer
from bench.peers.server import CONNECTIONS, START_S, await_answer, running
from bench.peers.settings import Setting
from bench.peers.split import Split

_WARM = (64, 2)  # connections, seconds


@dataclass(frozen=True)
class Stage:
    """most: connections at a time that a server must serve.  warm: connections, seconds.
    patience_s: of a run of wrk.  start_s: that a server may take to serve.  heads: their kinds;
    what is not a round is measured with the first one alone."""

    device: str
    envs: Envs
    split: Split
    most: int = CONNECTIONS
    warm: tuple[int, int] = _WARM
    patience_s: float = 0.0
    start_s: float = START_S
    heads: tuple[str, ...] = (DIFFERING,)

    @contextmanager
    def ready(self, peer: Peer, model: str, setting: Setting, asked: Questions) -> Iterator[Wrk]:
        """A server that answers right, and the load for it."""
        with running(peer, model, self.device, setting, self.envs, self.most) as server:
            await_answer(server, lambda: serves(server, asked), self.start_s)
            length = compare(server, asked)
            yield Wrk(
                self.envs.wrk(),
                self.envs.wrk_libraries(),
                server,
                asked,
                length,
                self.split,
                heads=self.heads,
            )

    def warm_up(self, wrk: Wrk, round_: int = 0) -> None:
        for _ in measure(replace(wrk, heads=wrk.heads[:1]), [self.warm], round_):
            pass
