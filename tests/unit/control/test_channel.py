"""The control channel: whole messages with descriptors, and what is refused."""

from __future__ import annotations

import array
import errno
import gc
import os
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from batchpool.control.channel import (
    MAX_FDS,
    MAX_MESSAGE_BYTES,
    MAX_PACKET_BYTES,
    Channel,
    Closed,
    close_all,
    pair,
)
from batchpool.control.edges import FROM_CLIENT
from tests.unit.control.packets import receive_form, send_form
from tests.unit.shm.scarcity import no_descriptors


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
        send_form(ends[0], message)
    assert [receive_form(ends[1]) for _ in messages] == [(message, []) for message in messages]


def test_descriptors_ride_along(ends: Ends) -> None:
    read, write = os.pipe()
    send_form(ends[0], {"op": "pipe"}, [read, write])
    os.close(read)
    os.close(write)
    message, fds = receive_form(ends[1])
    assert message == {"op": "pipe"}
    assert len(fds) == 2
    assert not any(os.get_inheritable(fd) for fd in fds)
    os.write(fds[1], b"through")
    assert os.read(fds[0], 7) == b"through"
    close_all(fds)


def test_as_many_descriptors_as_allowed_and_no_more(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    send_form(ends[0], {"op": "many"}, [null] * MAX_FDS)
    _, fds = receive_form(ends[1])
    assert len(fds) == MAX_FDS
    close_all(fds)
    with pytest.raises(ValueError, match=f"{MAX_FDS + 1} descriptors; at most {MAX_FDS}"):
        send_form(ends[0], {"op": "many"}, [null] * (MAX_FDS + 1))
    os.close(null)


def filled(size: int) -> dict[str, Any]:
    message = {"op": "large", "fill": b""}
    over = len(msgpack.packb({**message, "fill": bytes(1000)})) - 1000 + 2  # a longer length
    message["fill"] = bytes(size - over)
    assert abs(len(msgpack.packb(message)) - size) <= 1
    return message


def fitting() -> dict[str, Any]:
    """The longest message that is one packet."""
    most = filled(MAX_PACKET_BYTES)
    while len(msgpack.packb(most)) > MAX_PACKET_BYTES:
        most["fill"] = most["fill"][1:]
    return most


@pytest.mark.parametrize("over", [0, 1, 100, 3_000_000])
def test_a_message_longer_than_a_packet_comes_as_any_other(ends: Ends, over: int) -> None:
    message = fitting()
    message["fill"] += bytes(over)
    read, write = os.pipe()
    before = open_fds()
    send_form(ends[0], message, [write, read])
    assert open_fds() == before
    send_form(ends[0], {"op": "next"})
    found, fds = receive_form(ends[1])
    assert found == message
    os.write(fds[0], b"through")
    assert os.read(fds[1], 7) == b"through"
    assert receive_form(ends[1]) == ({"op": "next"}, [])
    close_all([*fds, read, write])


def test_a_long_message_has_as_many_descriptors_as_any_other(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    send_form(ends[0], filled(MAX_PACKET_BYTES + 100), [null] * MAX_FDS)
    _, fds = receive_form(ends[1])
    assert len(fds) == MAX_FDS
    close_all([*fds, null])


def test_there_is_an_end_to_long_messages(ends: Ends) -> None:
    with pytest.raises(ValueError, match=rf"of \d+ bytes; at most {MAX_MESSAGE_BYTES}"):
        send_form(ends[0], {"op": "x", "fill": bytes(MAX_MESSAGE_BYTES)})
    fd = os.memfd_create("test")
    os.truncate(fd, MAX_MESSAGE_BYTES + 1)
    raw_send(ends[0], msgpack.packb({"op": "aside"}), [fd])
    os.close(fd)
    before = open_fds()
    with pytest.raises(ValueError, match=f"at most {MAX_MESSAGE_BYTES} are taken"):
        receive_form(ends[1])
    assert open_fds() == before


@pytest.mark.parametrize("descriptors", [0, 1])
def test_who_is_not_trusted_can_say_nothing_long(ends: Ends, descriptors: int) -> None:
    """A descriptor of his may be anything, and reading it may take for ever."""
    read, write = os.pipe()
    before = open_fds()
    raw_send(ends[0], msgpack.packb({"op": "aside"}), [read][:descriptors])
    with pytest.raises(ValueError, match="bytes are taken here"):
        receive_form(Channel(ends[1].sock, trusted=False))
    assert open_fds() == before
    close_all([read, write])


def test_small_buffers_of_the_machine_cost_no_message(ends: Ends) -> None:
    ends[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    message = {"op": "x", "fill": bytes(100_000)}
    send_form(ends[0], message)
    assert receive_form(ends[1]) == (message, [])


@pytest.mark.parametrize("name", ["ENOBUFS", "ENOMEM", "ETOOMANYREFS"])
def test_what_the_kernel_is_short_of_is_not_the_end_of_the_connection(
    ends: Ends, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> int:
        raise OSError(getattr(errno, name), name)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", short)
        with pytest.raises(BlockingIOError, match="not now"):
            send_form(ends[0], {"op": "x"})
    send_form(ends[0], {"op": "x"})
    assert receive_form(ends[1]) == ({"op": "x"}, [])


def test_a_long_message_for_which_there_is_no_descriptor_can_be_sent_later(ends: Ends) -> None:
    message = filled(MAX_PACKET_BYTES + 100)
    with no_descriptors(), pytest.raises(BlockingIOError, match="too many open files: this pro"):
        send_form(ends[0], message)
    send_form(ends[0], message)
    assert receive_form(ends[1]) == (message, [])


def test_descriptors_that_have_no_room_here_are_told_of(ends: Ends) -> None:
    read, write = os.pipe()
    send_form(ends[0], {"op": "x"}, [read, write])
    before = open_fds()
    with no_descriptors(but=1), pytest.raises(ValueError, match="too many open files: this pro"):
        receive_form(ends[1])
    assert open_fds() == before
    close_all([read, write])


def test_last_words_are_heard_although_our_own_are_not(ends: Ends) -> None:
    """The peer refuses and goes, and leaves unread what we said meanwhile."""
    send_form(ends[1], {"op": "unread"})
    send_form(ends[0], {"op": "no"})
    ends[0].close()
    assert receive_form(ends[1]) == ({"op": "no"}, [])
    with pytest.raises(Closed):
        receive_form(ends[1])


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
        b"\xff" * MAX_PACKET_BYTES,
    ],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(
    ends: Ends, raw: bytes
) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    before = open_fds()
    raw_send(ends[0], raw, [null])
    with pytest.raises(ValueError, match="bad control message: "):
        ends[1].receive(FROM_CLIENT)
    assert open_fds() == before
    os.close(null)
    send_form(ends[0], {"op": "next"})
    assert receive_form(ends[1])[0] == {"op": "next"}, "the connection goes on"


def test_a_message_larger_than_the_buffer_is_refused_whole(ends: Ends) -> None:
    """Its first part alone would read as a good message."""
    good = msgpack.packb({"op": "attach", "fill": bytes(MAX_PACKET_BYTES)})
    start = msgpack.packb({"op": "x", "f": bytes(MAX_PACKET_BYTES - 15)})
    assert len(start) <= MAX_PACKET_BYTES < len(good)
    padded = start.ljust(MAX_PACKET_BYTES, b"\0") + b"rest"
    for raw in (good, padded, start[:MAX_PACKET_BYTES] + bytes(64)):
        raw_send(ends[0], raw)
        with pytest.raises(ValueError, match="bad control message: "):
            ends[1].receive(FROM_CLIENT)


def test_more_descriptors_than_there_is_room_for_are_refused_and_closed(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    before = open_fds()
    raw_send(ends[0], msgpack.packb({"op": "x"}), [null] * (MAX_FDS + 10))
    with pytest.raises(ValueError, match="cut off"):
        receive_form(ends[1])
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
    message, fds = receive_form(ends[1])
    assert message == {"op": "x"}
    assert len(fds) == 1
    close_all([*fds, null])


def test_the_end_of_the_connection(ends: Ends) -> None:
    send_form(ends[0], {"op": "last"})
    ends[0].close()
    assert receive_form(ends[1])[0] == {"op": "last"}, "what was sent before the end still comes"
    with pytest.raises(Closed, match="closed by the other side"):
        receive_form(ends[1])
    with pytest.raises(Closed, match="control connection lost"):
        send_form(ends[1], {"op": "too late"})
    assert issubclass(Closed, ConnectionError)


def test_a_peer_that_does_not_read_is_not_waited_for(ends: Ends) -> None:
    for end in ends:
        end.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive_form(ends[1])
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            send_form(ends[0], {"op": "x", "fill": bytes(50_000)})
            sent += 1
    assert sent > 0
    for _ in range(sent):
        assert receive_form(ends[1])[0]["op"] == "x"
    send_form(ends[0], {"op": "again"})
    assert receive_form(ends[1])[0] == {"op": "again"}


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
