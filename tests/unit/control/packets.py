"""Packets of control channels as plain maps, for tests of what is not, or not only, a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from batchpool.control.channel import Channel
from batchpool.control.messages import Message


class Named(Message, frozen=True, tag="named"):
    """A message of no edge."""

    name: str
    fill: bytes = b""


def send_form(channel: Channel, form: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    channel.send_packet(msgpack.packb(form), fds)


def receive_form(channel: Channel) -> tuple[dict[str, Any], list[int]]:
    raw, fds = channel.receive_packet()
    return msgpack.unpackb(raw), fds
