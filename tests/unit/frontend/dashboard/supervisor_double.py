"""Somebody who answers at the pool's socket, on the test's loop."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from batchpool.control.channel import Channel
from tests.unit.control.packets import receive_form, send_form


class Supervisor:
    """Takes connections. answers: what it says to the next questions; without one, nothing."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(str(path))
        self.sock.listen()
        self.sock.setblocking(False)
        self.answers: list[dict[str, Any]] = []
        self.connections: list[Channel] = []
        self.questions: list[dict[str, Any]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.sock.fileno(), self._accept)

    def _accept(self) -> None:
        sock, _ = self.sock.accept()
        sock.setblocking(False)
        channel = Channel(sock)
        self.connections.append(channel)
        self._loop.add_reader(sock.fileno(), self._hear, channel)

    def _hear(self, channel: Channel) -> None:
        try:
            self.questions.append(receive_form(channel)[0])
        except ConnectionError:
            self._loop.remove_reader(channel.fileno())
            return
        if self.answers:
            send_form(channel, self.answers.pop(0))

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self._loop.remove_reader(self.sock.fileno())
        self.sock.close()
        for channel in self.connections:
            self._loop.remove_reader(channel.fileno())
            channel.close()
