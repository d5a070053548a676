"""Every kind of hostile HTTP connection.

A kind is a function of the port, as text, and a model's name. It does its mischief for about
`kind.ROUND_S` and returns; the process calls it again. Slow callers keep their connections from
round to round.
"""

from __future__ import annotations

import gzip
import os
import socket
import struct
import time
import zlib

from bench.hostile.http_connection import (
    all_until_closed,
    answers_in,
    connect,
    connected,
    flood,
    infer_body,
    infer_path,
    message,
)
from bench.hostile.kind import Kind, NotStopped, until_s

_SLOW_CONNECTIONS = 40
_PIECE_S = 0.2
_MIB = 1 << 20
_slow: list[socket.socket] = []


def pipelines_and_reads(port: str, model: str) -> None:
    """Infer requests without a pause over one connection, whose answers are taken."""
    with connected(port) as sock:
        flood(sock, message(infer_path(model), infer_body(port, model)) * 50, until_s(), reads=True)


def pipelines_without_reading(port: str, model: str) -> None:
    """Infer requests without a pause over one connection, none of whose answers is taken."""
    sent = message(infer_path(model), infer_body(port, model)) * 50
    with connected(port, receive_bytes=4096) as sock:
        flood(sock, sent, until_s(), reads=False)


def pipelines_by_both_roads(port: str, model: str) -> None:
    """Requests of the fast path, of ASGI and wrong ones, by turns."""
    body = infer_body(port, model)
    sent = message(infer_path(model), body) + message(infer_path(model) + "?a", body)
    sent += message("/nowhere", b"dropped") + message(infer_path(model), b"{")
    with connected(port) as sock:
        flood(sock, (sent + message("/v2", method="GET")) * 20, until_s(), reads=True)


def pipelines_and_leaves(port: str, model: str) -> None:
    """A reset while hundreds of requests wait."""
    sent = message(infer_path(model), infer_body(port, model)) * 300
    end_s = until_s()
    while time.monotonic() < end_s:
        with connected(port) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            flood(sock, sent, time.monotonic() + 0.05, reads=False)


def asks_for_little_without_end(port: str, model: str) -> None:
    """Thousands of pipelined requests that are answered at once."""
    with connected(port) as sock:
        flood(sock, message("/v2/health/live", method="GET") * 500, until_s(), reads=True)


def shuts_its_half(port: str, model: str) -> None:
    """The end of the sending half right behind a request, and in the midst of one."""
    sent = message(infer_path(model), infer_body(port, model))
    end_s = until_s()
    while time.monotonic() < end_s:
        for part in (sent, sent * 3, sent[:-1], sent[:20]):
            with connected(port) as sock:
                sock.sendall(part)
                sock.shutdown(socket.SHUT_WR)
                all_until_closed(sock)


def drips_heads(port: str, model: str) -> None:
    """Heads that never end, a byte at a time, over many connections."""
    _drip(port, b"GET /v2 HTTP/1.1\r\nHost: pool\r\nX: ", b"a")


def drips_bodies(port: str, model: str) -> None:
    """Bodies that never end, a byte at a time, over many connections."""
    head = message(infer_path(model), Content_Length=f"{8 * _MIB}")
    _drip(port, head, b" ")


def drips_chunks(port: str, model: str) -> None:
    """Chunks of one byte, slowly, over many connections."""
    head = message(infer_path(model)).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    _drip(port, head, b"1\r\n \r\n")


def sends_empty_lines_in_chunks(port: str, model: str) -> None:
    """Chunks of nothing but empty lines, each of which might end a message, as fast as can be."""
    head = message(infer_path(model)).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    lines = b"\r\n\r\n" * 15_000
    chunks = b"%x\r\n%b\r\n" % (len(lines), lines)
    with connected(port) as sock:
        sent = head + chunks * 8 + b"0\r\n\r\n"
        statuses = answers_in(flood(sock, sent, until_s(), reads=True))
    if 200 in statuses:
        raise NotStopped("empty lines were taken for a request")


def connects_by_the_hundred(port: str, model: str) -> None:
    """Hundreds of connections at once, which ask for nothing and stay for a moment."""
    socks = []
    try:
        for _ in range(300):
            socks.append(connect(port))
        for sock in socks:
            sock.sendall(b"GET /v2")
    finally:
        for sock in socks:
            sock.close()


def sends_endless_heads(port: str, model: str) -> None:
    """A head without an end, as fast as can be."""
    _endless(port, b"GET /v2 HTTP/1.1\r\nHost: pool\r\nX: ", b"a" * 65536, 400)
    _endless(port, b"GET /v2 HTTP/1.1\r\nHost: pool\r\n", b"X: a\r\n" * 10_000, 400)
    _endless(port, b"", b"\r\n" * 32768, 400)


def sends_endless_framing(port: str, model: str) -> None:
    """A chunk extension and a trailer without an end, as fast as can be."""
    head = message(infer_path(model)).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    _endless(port, head + b"1;", b"a" * 65536, 400)
    _endless(port, head + b"0\r\nX: ", b"a" * 65536, 400)


def sends_bombs(port: str, model: str) -> None:
    """Small compressed bodies that become large ones, over several connections at once."""
    text = b'{"inputs": [' + b"1," * (24 * _MIB // 2)
    bombs = [
        message(infer_path(model), gzip.compress(text), Content_Encoding="gzip"),
        message(infer_path(model), zlib.compress(bytes(60 * _MIB)), Content_Encoding="deflate"),
    ]
    socks = [connect(port) for _ in range(8)]
    try:
        for number, sock in enumerate(socks):
            sock.sendall(bombs[number % 2])
        for sock in socks:
            sock.settimeout(60)
            if 200 in answers_in(sock.recv(65536)):
                raise NotStopped("a bomb was taken for a request")
    finally:
        for sock in socks:
            sock.close()


def sends_values_without_number(port: str, model: str) -> None:
    """Small bodies, as JSON and as msgpack, of which very many values would be made."""
    many = 8 * _MIB
    tensor = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":['
    texts = [f"{tensor}{element * (many // len(element))}1]}}]}}" for element in ("-0,", "[],")]
    texts.append('{"model_name":[' + "[1]," * (many // 4) + '1],"inputs":[]}')
    bodies = [(gzip.compress(text.encode(), 1), "application/json") for text in texts]
    packed = b"\x81\xa6inputs\x81\xa1x\x83\xa5dtype\xa5BYTES\xa5shape\x92\x01\x01\xa4data"
    packed += b"\xdd" + many.to_bytes(4, "big") + b"\x90" * many
    bodies.append((gzip.compress(packed, 1), "application/msgpack"))
    for body, content_type in bodies:
        with connected(port) as sock:
            sock.settimeout(60)
            fields = {"Content_Encoding": "gzip", "Content_Type": content_type}
            sock.sendall(message(infer_path(model), body, Connection="close", **fields))
            if 200 in answers_in(all_until_closed(sock)):
                raise NotStopped("a bomb was taken for a request")


def fills_the_memory_under_many_names(port: str, model: str) -> None:
    """Bodies that stop before their last byte, each as another caller by its X-Client-Id."""
    size = 32 * _MIB
    socks = [connect(port) for _ in range(4)]
    try:
        for number, sock in enumerate(socks):
            head = message(
                infer_path(model), Content_Length=f"{size}", X_Client_Id=f"name {number}"
            )
            sock.sendall(head)
            sock.setblocking(False)
        end_s = until_s()
        left = dict.fromkeys(socks, size - 1)
        while time.monotonic() < end_s:
            for sock in socks:
                try:
                    left[sock] -= sock.send(bytes(min(_MIB, left[sock])))
                except BlockingIOError:
                    time.sleep(0.001)
                except OSError:
                    left[sock] = 0  # it was refused
            time.sleep(0.001)
    finally:
        for sock in socks:
            sock.close()


def fills_the_memory(port: str, model: str) -> None:
    """Bodies that stop before their last byte, over many connections."""
    head = message(infer_path(model), Content_Length=f"{32 * _MIB}")
    socks = [connect(port) for _ in range(6)]
    try:
        end_s = until_s()
        for sock in socks:
            sock.sendall(head)
        while time.monotonic() < end_s:
            for sock in socks:
                sock.setblocking(False)
                try:
                    sock.send(b" " * _MIB)
                except BlockingIOError:
                    time.sleep(0.001)
    finally:
        for sock in socks:
            sock.close()


def sends_noise(port: str, model: str) -> None:
    """Bytes that are no HTTP: a TLS greeting, zeros, random ones, requests with a byte changed."""
    good = message(infer_path(model), infer_body(port, model))
    end_s = until_s()
    while time.monotonic() < end_s:
        at = int.from_bytes(os.urandom(2), "little") % len(good)
        changed = good[:at] + os.urandom(1) + good[at + 1 :]
        for noise in (b"\x16\x03\x01\x02\x00", bytes(500), os.urandom(3000), changed):
            with connected(port) as sock:
                sock.settimeout(0.05)
                sock.sendall(noise)
                all_until_closed(sock)


def frames_in_two_ways(port: str, model: str) -> None:
    """Requests within the bodies of others, for servers that read either length."""
    inner = message("/v2", method="GET")
    path, size = infer_path(model), f"{len(inner)}"
    chunked = b"Transfer-Encoding: chunked\r\n"
    for fields in (
        b"Content-Length: 0\r\n" + chunked,
        chunked + b"Content-Length: 0\r\n",
        f"Content-Length: 0\r\nContent-Length: {size}\r\n".encode(),
        f"Content-Length: 0, {size}\r\n".encode(),
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n",
        f"X: a\nContent-Length: {size}\r\n".encode(),
        b"Host: other\r\n" + chunked,
    ):
        with connected(port) as sock:
            sock.settimeout(30)  # the sender may have to wait for a processor
            head = f"POST {path} HTTP/1.1\r\nHost: pool\r\n".encode()
            sock.sendall(head + fields + b"\r\n" + b"0\r\n\r\n" + inner)
            statuses = answers_in(all_until_closed(sock))
        if statuses != [400]:
            raise NotStopped(f"{fields!r} was answered {statuses}")


def adds_line_ends(port: str, model: str) -> None:
    """Equal requests whose bodies begin with line ends, and more of them between requests."""
    body = b"\r\n" + infer_body(port, model)
    sent = message(infer_path(model), body) + b"\r\n"
    with connected(port) as sock:
        statuses = answers_in(flood(sock, b"\r\n" + sent, until_s(), reads=True))
    if any(status != 200 and status < 500 for status in statuses[1:]):
        raise NotStopped(f"a right request was answered {statuses}")


def scrapes_without_end(port: str, model: str) -> None:
    """/metrics, pipelined, over one connection."""
    with connected(port) as sock:
        flood(sock, message("/metrics", method="GET") * 10, until_s(), reads=True)


def comes_and_leaves(port: str, model: str) -> None:
    """Connections that are closed or reset as soon as they are there."""
    end_s = until_s()
    while time.monotonic() < end_s:
        with connected(port):
            pass
        with connected(port) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(b"GET ")


def _drip(port: str, head: bytes, piece: bytes) -> None:
    """A head over many connections, which are kept, and then a piece each from time to time."""
    while len(_slow) < _SLOW_CONNECTIONS:
        sock = connect(port)
        sock.sendall(head)
        _slow.append(sock)
    end_s = until_s()
    while time.monotonic() < end_s:
        for sock in list(_slow):
            try:
                sock.sendall(piece)
            except OSError:
                _slow.remove(sock)
                sock.close()
        time.sleep(_PIECE_S)


def _endless(port: str, head: bytes, piece: bytes, expected: int) -> None:
    """Bytes without an end until the server closes; its answer, if it came through, is checked."""
    with connected(port) as sock:
        received = b""
        try:
            sock.sendall(head)
            for _ in range(10_000):
                sock.sendall(piece)
        except (ConnectionError, TimeoutError):
            received = all_until_closed(sock)
        else:
            raise NotStopped(f"{10_000 * len(piece)} bytes behind {head[:40]!r} were taken")
        statuses = answers_in(received)
        if statuses not in ([], [expected]):
            raise NotStopped(f"bytes without an end were answered {statuses}")


HTTP_KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        pipelines_and_reads,
        pipelines_without_reading,
        pipelines_by_both_roads,
        pipelines_and_leaves,
        asks_for_little_without_end,
        shuts_its_half,
        drips_heads,
        drips_bodies,
        drips_chunks,
        sends_empty_lines_in_chunks,
        connects_by_the_hundred,
        sends_endless_heads,
        sends_endless_framing,
        sends_bombs,
        sends_values_without_number,
        fills_the_memory,
        fills_the_memory_under_many_names,
        sends_noise,
        frames_in_two_ways,
        adds_line_ends,
        scrapes_without_end,
        comes_and_leaves,
    )
}
