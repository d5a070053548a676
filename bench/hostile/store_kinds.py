"""Every kind of hostile HTTP caller of what is kept: tasks, files, batches, and bodies of Arrow.

As `bench/hostile/http_kinds.py` has them. A pool that keeps no tasks and no files answers 501, and
one without pyarrow 415, which harms nobody either.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from base64 import b85decode

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

_ARROW = "application/vnd.apache.arrow.stream"
_FORM = "multipart/form-data; boundary=x"
_NOBODY = "t_" + "0" * 39
_LINES = (
    b"no JSON",
    b'{"custom_id": "a"}',
    b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/embeddings", "body": {}}',
    b'{"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": ' + b"[" * 3000,
    b'{"custom_id": "c", "method": "POST", "url": "/v1/embeddings", "body": {"model": "\xff"}}',
    b'{"custom_id": "d", "method": "POST", "url": "/v1/embeddings", "body": {"model": "none",'
    b' "input": "x"}}',
)

# Streams of Arrow, deflated, with a column x of a billion lists of no element, and of as many
# nulls: this process may have no right to read pyarrow any more.
_COLUMNS_WITHOUT_BYTES = (
    (
        "c-oCnF%H5o47{poh^h=3BE-PZk!SQX9V)@bz>|0m0|UP?7uS_SB?Kqc=S$DA9TAZSfP{h`5gr`^Goo?SpbCu6B9D#l"
        "tfh*X`JwukjBos&<^IK&if^cVC(GySbb;nhbwXw@kDYc;He1scK3WYvYQ6gX;?u~M@*-#RM(k~~sJEhZI&;8^o;vE5"
        "W%qNn$BGW$5jKoJwT`msV;J!pqv+cLZ>|;~ss"
    ),
    (
        "c-nPPyA47y5OW|rqNgiTM2O-Q3_`&&6clt6jKWBaz&3|-7=a$bQqJe(zHxWI0jTI0VHmJNp+}@l4XQ$$WqB=rFqg_2"
        "{q5J=PJHFLGp3?3cfdNTRrN}#^Q1h8PnYBQ<>%0@`I=%38%=0Y4a*$83*H#1EvD@|?6q6M2Mhd1nZ>2wki(3__xKCo"
        "39FzQO8"
    ),
)


def _answer(
    port: str, method: str, path: str, body: bytes = b"", **fields: str
) -> tuple[int, bytes]:
    """The status and the body of one response; 0 where none came whole."""
    with connected(port) as sock:
        sock.settimeout(60)
        sock.sendall(message(path, body, method, Connection="close", **fields))
        head, _, found = all_until_closed(sock).partition(b"\r\n\r\n")
    statuses = answers_in(head)
    return statuses[0] if statuses else 0, found


def _inflated(text: str) -> bytes:
    return zlib.decompress(b85decode(text))


def submits_and_takes_back(port: str, model: str) -> None:
    """Tasks without a pause, each with a key that another one has, half of them taken back."""
    body, end_s = infer_body(port, model), until_s()
    while time.monotonic() < end_s:
        fields = {"Prefer": "respond-async", "Idempotency_Key": f"k{os.urandom(1)[0] % 8}"}
        status, found = _answer(port, "POST", infer_path(model), body, **fields)
        if status == 202 and os.urandom(1)[0] % 2:
            _answer(port, "DELETE", f"/v2/tasks/{json.loads(found)['id']}")


def waits_for_tasks_and_leaves(port: str, model: str) -> None:
    """Long waits for tasks that are there and for others, over many connections that then go."""
    fields = {"Prefer": "respond-async"}
    status, found = _answer(port, "POST", infer_path(model), infer_body(port, model), **fields)
    ids = [_NOBODY, json.loads(found)["id"] if status == 202 else _NOBODY]
    sent = [message(f"/v2/tasks/{each}/result?wait_s=60", method="GET") * 20 for each in ids]
    socks = [connect(port) for _ in range(40)]
    try:
        for number, sock in enumerate(socks):
            sock.sendall(sent[number % 2])
        time.sleep(max(0.0, until_s() - time.monotonic()))
    finally:
        for sock in socks:
            sock.close()


def asks_wrongly_for_tasks(port: str, model: str) -> None:
    """Questions of a thousand ids, and such that are none."""
    for body in (
        json.dumps({"ids": [_NOBODY] * 1000}).encode(),
        b'{"ids": ["\xff"]}',
        b'{"ids": ' + b"[" * 60_000,
        b'{"ids": ["' + b"a" * 60_000 + b'"]}',
    ):
        status, _ = _answer(port, "POST", "/v2/tasks/query", body)
        if status == 500:
            raise NotStopped(f"{body[:20]!r} was an error of the server")
    for path in (
        "/v2/tasks/%ff%00",
        "/v1/files/..%2f..%2fetc%2fpasswd/content",
        "/v1/files/%2e%2e",
    ):
        status, _ = _answer(port, "GET", path)
        if status < 400 or status == 500:
            raise NotStopped(f"{path} was answered {status}")


def sends_forms_without_end(port: str, model: str) -> None:
    """Uploads whose forms have parts, headers, or empty lines without number."""
    head = message("/v1/files", Content_Type=_FORM)
    head = head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for piece in (b"--x\r\n\r\n\r\n", b"--x\r\nX: y\r\n\r\n\r\n", b"\r\n", b"X: y\r\n"):
        many = piece * (60_000 // len(piece))
        chunk = b"%x\r\n%b\r\n" % (len(many), many)
        with connected(port) as sock:
            received = flood(sock, head + chunk * 20, until_s(), reads=True)
        if 200 in answers_in(received):
            raise NotStopped(f"a form of {piece!r} without end was taken")


def leaves_uploads(port: str, model: str) -> None:
    """Files of which the most never comes, over many connections."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../x"\r\n\r\n'
    head = message("/v1/files", Content_Type=_FORM, Content_Length="1000000")
    socks = [connect(port) for _ in range(30)]
    try:
        for sock in socks:
            sock.sendall(head + part + bytes(100_000))
        time.sleep(max(0.0, until_s() - time.monotonic()))
    finally:
        for sock in socks:
            sock.close()


def takes_every_upload_place(port: str, model: str) -> None:
    """Uploads that are begun and never end, from five addresses, as many as are taken."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    head = message("/v1/files", Content_Type=_FORM, Content_Length="1000000")
    socks = []
    try:
        for number in range(100):
            socks.append(connect(port, alias=number // 20))
            socks[-1].sendall(head + part)
        time.sleep(max(0.0, until_s() - time.monotonic()))
        body = part + b"{}\r\n" + b'--x\r\nContent-Disposition: form-data; name="purpose"'
        body += b"\r\n\r\nbatch\r\n--x--\r\n"
        with connect(port, alias=5) as sock:
            sock.settimeout(60)
            sock.sendall(message("/v1/files", body, Content_Type=_FORM, Connection="close"))
            if 503 in answers_in(all_until_closed(sock)):
                raise NotStopped("an address without an upload got no place")
    finally:
        for sock in socks:
            sock.close()


def makes_batches_of_noise(port: str, model: str) -> None:
    """Batches whose lines are no requests, or requests of no model, cancelled amid their run."""
    lines = b"\n".join(_LINES * 50)
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % part
        for part in ((b"purpose", b"", b"batch"), (b"file", b'; filename="\x1b[2J"', lines))
    )
    status, found = _answer(port, "POST", "/v1/files", body + b"--x--\r\n", Content_Type=_FORM)
    if status != 200:
        return
    file = json.loads(found)["id"]
    wanted = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    status, found = _answer(port, "POST", "/v1/batches", json.dumps(wanted).encode())
    if status == 200:
        batch = json.loads(found)["id"]
        _answer(port, "POST", f"/v1/batches/{batch}/cancel")
        for _ in range(2):
            _answer(port, "DELETE", f"/v1/files/{file}")


def announces_columns(port: str, model: str) -> None:
    """Small bodies of Arrow: elements without bytes, heads without number, buffers of all heads."""
    columns = map(_inflated, _COLUMNS_WITHOUT_BYTES)
    for body in (_heads(20_000, b""), _heads(2000, bytes(16 * 8000)), *columns):
        with connected(port) as sock:
            sock.settimeout(60)
            fields = {"Content_Type": _ARROW, "Connection": "close"}
            sock.sendall(message(infer_path(model), body, **fields))
            if 200 in answers_in(all_until_closed(sock)):
                raise NotStopped("columns without bytes were taken for a request")


def _heads(count: int, vector: bytes) -> bytes:
    """Messages without a field, or such whose buffers all stand in one vector behind them."""
    if not vector:
        return struct.pack("<II", 4, 0) * count
    each, stream = 64, bytearray()
    for number in range(count):
        head = bytearray(each - 8)
        struct.pack_into("<IHHHHH", head, 0, 16, 10, 12, 4, 6, 8)
        struct.pack_into("<ihBxI", head, 16, 12, 4, 3, 16)
        struct.pack_into("<HHHHHH", head, 28, 12, 12, 0, 0, 4, 8)
        struct.pack_into("<iII", head, 40, 12, (count - number) * each - 44, 4)
        struct.pack_into("<i", head, 52, 48)
        stream += struct.pack("<II", 0xFFFFFFFF, len(head)) + head
    return bytes(stream) + struct.pack("<III", 0xFFFFFFFF, 0, len(vector) // 16) + vector


STORE_KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        submits_and_takes_back,
        waits_for_tasks_and_leaves,
        asks_wrongly_for_tasks,
        sends_forms_without_end,
        leaves_uploads,
        takes_every_upload_place,
        makes_batches_of_noise,
        announces_columns,
    )
}
