"""The control channel: whole messages with descriptors, and what is refused."""

from __future__ import annotations

import array
import gc
import os
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from batchpool.shm.channel import (
    MAX_FDS,
    MAX_MESSAGE_BYTES,
    Channel,
    Closed,
    close_all,
    pair,
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    a, b = pair()
    yield a, b
    a.close()
    b.close()


Ends = tuple[Channel, Channel]


def open_fds() -> set[str]:
    gc.collect()  # what earlier tests forgot must not go between two looks
    return set(os.listdir("/proc/self/fd"))


def test_messages_stay_apart_and_in_order(ends: Ends) -> None:
    messages: list[dict[str, Any]] = [
        {"op": "a", "n": 2**63, "text": "é", "raw": b"\0\xff", "list": [1, None, True, 0.5]},
        {"op": "b"},
        {"op": "c", "nested": {"k": {"k": []}}},
    ]
    for message in messages:
        ends[0].send(message)
    assert [ends[1].receive() for _ in messages] == [(message, []) for message in messages]


def test_descriptors_ride_along(ends: Ends) -> None:
    read, write = os.pipe()
    ends[0].send({"op": "pipe"}, [read, write])
    os.close(read)
    os.close(write)
    message, fds = ends[1].receive()
    assert message == {"op": "pipe"}
    assert len(fds) == 2
    assert not any(os.get_inheritable(fd) for fd in fds)
    os.write(fds[1], b"through")
    assert os.read(fds[0], 7) == b"through"
    close_all(fds)


def test_as_many_descriptors_as_allowed_and_no_more(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    ends[0].send({"op": "many"}, [null] * MAX_FDS)
    _, fds = ends[1].receive()
    assert len(fds) == MAX_FDS
    close_all(fds)
    with pytest.raises(ValueError, match=f"{MAX_FDS + 1} descriptors; at most {MAX_FDS}"):
        ends[0].send({"op": "many"}, [null] * (MAX_FDS + 1))
    os.close(null)


def filled(size: int) -> dict[str, Any]:
    message = {"op": "large", "fill": b""}
    over = len(msgpack.packb({**message, "fill": bytes(1000)})) - 1000 + 2  # a longer length
    message["fill"] = bytes(size - over)
    assert abs(len(msgpack.packb(message)) - size) <= 1
    return message


def test_a_message_of_the_most_bytes_passes_and_a_larger_one_is_refused(ends: Ends) -> None:
    most = filled(MAX_MESSAGE_BYTES)
    while len(msgpack.packb(most)) > MAX_MESSAGE_BYTES:
        most["fill"] = most["fill"][1:]
    ends[0].send(most)
    assert ends[1].receive()[0] == most
    size = MAX_MESSAGE_BYTES + 100
    with pytest.raises(ValueError, match=rf"of 13\d+ bytes; at most {MAX_MESSAGE_BYTES}"):
        ends[0].send(filled(size))


def raw_send(channel: Channel, raw: bytes, fds: list[int] | None = None) -> None:
    socket.send_fds(channel.sock, [raw], fds or [])


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc1",  # never used in msgpack
        b"\x00",
        msgpack.packb("attach"),
        msgpack.packb(["op", "attach"]),
        msgpack.packb({}),
        msgpack.packb({"op": 3}),
        msgpack.packb({"op": b"attach"}),
        msgpack.packb({"OP": "attach"}),
        msgpack.packb({"op": "attach"})[:-1],  # cut
        msgpack.packb({"op": "attach"}) + b"\0",  # something behind it
        msgpack.packb({"op": "attach", 1: 2}),
        b"\x91" * 2000 + b"\xc0",  # deep nesting
        b"\x82\xa2op\xa1x\xa1k\xc6\xff\xff\xff\xff",  # claims 4 GB
        pickle.dumps({"op": "attach"}),
        b"{}",
        b"\xff" * MAX_MESSAGE_BYTES,
    ],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(
    ends: Ends, raw: bytes
) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    before = open_fds()
    raw_send(ends[0], raw, [null])
    with pytest.raises(ValueError, match="bad control message: "):
        ends[1].receive()
    assert open_fds() == before
    os.close(null)
    ends[0].send({"op": "next"})
    assert ends[1].receive()[0] == {"op": "next"}, "the connection goes on"


def test_a_message_larger_than_the_buffer_is_refused_whole(ends: Ends) -> None:
    """Its first part alone would read as a good message."""
    good = msgpack.packb({"op": "attach", "fill": bytes(MAX_MESSAGE_BYTES)})
    start = msgpack.packb({"op": "x", "f": bytes(MAX_MESSAGE_BYTES - 15)})
    assert len(start) <= MAX_MESSAGE_BYTES < len(good)
    padded = start.ljust(MAX_MESSAGE_BYTES, b"\0") + b"rest"
    for raw in (good, padded, start[:MAX_MESSAGE_BYTES] + bytes(64)):
        raw_send(ends[0], raw)
        with pytest.raises(ValueError, match="bad control message: "):
            ends[1].receive()


def test_more_descriptors_than_there_is_room_for_are_refused_and_closed(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    before = open_fds()
    raw_send(ends[0], msgpack.packb({"op": "x"}), [null] * (MAX_FDS + 10))
    with pytest.raises(ValueError, match="cut off"):
        ends[1].receive()
    assert open_fds() == before
    os.close(null)


def test_credentials_and_other_ancillary_words_are_ignored(ends: Ends) -> None:
    ids = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
    null = os.open("/dev/null", os.O_RDONLY)
    ends[0].sock.sendmsg(
        [msgpack.packb({"op": "x"})],
        [
            (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, ids),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null])),
        ],
    )
    message, fds = ends[1].receive()
    assert message == {"op": "x"}
    assert len(fds) == 1
    close_all([*fds, null])


def test_the_end_of_the_connection(ends: Ends) -> None:
    ends[0].send({"op": "last"})
    ends[0].close()
    assert ends[1].receive()[0] == {"op": "last"}, "what was sent before the end still comes"
    with pytest.raises(Closed, match="closed by the other side"):
        ends[1].receive()
    with pytest.raises(Closed, match="control connection lost"):
        ends[1].send({"op": "too late"})
    assert issubclass(Closed, ConnectionError)


def test_a_peer_that_does_not_read_is_not_waited_for(ends: Ends) -> None:
    for end in ends:
        end.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[1].receive()
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            ends[0].send({"op": "x", "fill": bytes(50_000)})
            sent += 1
    assert sent > 0
    for _ in range(sent):
        assert ends[1].receive()[0]["op"] == "x"
    ends[0].send({"op": "again"})
    assert ends[1].receive()[0] == {"op": "again"}


def test_both_ends_are_close_on_exec(ends: Ends) -> None:
    for end in ends:
        assert end.fileno() == end.sock.fileno()
        assert not os.get_inheritable(end.fileno())


def test_close_all_goes_on_past_a_bad_one() -> None:
    first, last = os.pipe()
    close_all([first, 10**6, last])
    for fd in (first, last):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
