"""One server: started in a process group of its own, awaited, and ended with all it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers import family
from bench.peers.envs import Envs
from bench.peers.roster import OURSELVES, SERVERS, Peer, command, in_flight
from bench.peers.settings import Setting

CONNECTIONS = 256  # a server is ready for that many, unless it is told of more
START_S = 120.0
_END_S = 8.0  # to end as asked; then it is killed
_PORTS = 5
_ROOT = Path(__file__).resolve().parents[2]
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "DO_NOT_TRACK": "1",
    "BENTOML_DO_NOT_TRACK": "True",
    "PYTRITON_NO_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class GaveUp(Exception):
    """A server that did not start, did not answer or did not answer right: the reason."""


@dataclass(frozen=True)
class Running:
    peer: Peer
    model: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def path(self) -> str:
        return self.peer.path.format(model=self.model)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(n)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(port: int) -> bool:
    """True if no socket listens there; old connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def environment(peer: Peer, envs: Envs, plan: dict[str, Any]) -> dict[str, str]:
    """Ours without what tells Python where to look; threads of a model: one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MOSEC_"))}
    kept |= _QUIET | {"PEER_PLAN": json.dumps(plan)}
    search = envs.search(peer)
    if peer.name != OURSELVES:
        search = [str(SERVERS), *search]
        kept |= {
            "TMPDIR": plan["folder"],
            "PATH": f"{envs.python(peer).parent}:{os.environ['PATH']}",
        }
    if search:
        kept["PYTHONPATH"] = os.pathsep.join(search)
    if peer.name == "pytriton":  # Triton's Python backend must load this interpreter's libpython
        folders = envs.library_folder(), os.environ.get("LD_LIBRARY_PATH", "")
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    return kept


@contextmanager
def running(
    peer: Peer,
    model: str,
    device: str,
    setting: Setting,
    envs: Envs,
    connections: int = CONNECTIONS,
) -> Iterator[Running]:
    """Its process is there, not yet more. connections: the most that it must answer at a time.
    GaveUp at the end: something of it could not be ended."""
    spared = frozenset(family.ours())
    with tempfile.TemporaryDirectory(prefix="bp-", ignore_cleanup_errors=True) as folder:
        ports = free_ports(_PORTS)
        plan = {"model": model, "device": device, "ports": ports, "folder": folder}
        plan |= asdict(setting) | {"in_flight": in_flight(connections)}
        told = command(peer, envs.python(peer), plan)
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                told,
                env=environment(peer, envs, plan),
                cwd=_ROOT if peer.name == OURSELVES else folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            yield Running(peer, model, ports[0], process, log)
        finally:
            _end(process, ports, spared)


def _end(process: subprocess.Popen[bytes], ports: list[int], spared: frozenset[int]) -> None:
    """Nothing interrupts this: a second Ctrl+C must not leave a server behind."""
    deaf_to = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in deaf_to}
    try:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        gone = family.end_all(spared)
    finally:
        for number, was in kept.items():
            signal.signal(number, was)
    if not gone:
        taken = [port for port in ports if not is_free(port)]
        raise GaveUp(f"could not be ended: processes {sorted(family.ours(spared))}, ports {taken}")


def await_answer(server: Running, ask: Any, within_s: float = START_S) -> None:
    """Until `ask()` is true. GaveUp: the server ended, or took too long."""
    until = time.monotonic() + within_s
    while not ask():
        if server.process.poll() is not None:
            status = server.process.returncode
            raise GaveUp(f"ended with {status} before it served: {server.last_words()}")
        if time.monotonic() > until:
            raise GaveUp(f"did not serve within {within_s:g} s: {server.last_words()}")
        time.sleep(0.05)
