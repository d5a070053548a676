"""HTTP over TLS, over a unix socket, and on every address of a name."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import stat
from pathlib import Path

import pytest

from batchpool.client.control import ask_reload
from tests.certificates import certificate
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, started, until
from tests.process.service_double import passing
from tests.process.test_proxies import BODY, INFER, LOGGED, access_lines, nginx


def peer_certificate(pool: Pool, trusted: str) -> bytes | None:
    """The certificate that the pool shows, if it is the trusted one."""
    context = ssl.create_default_context(cafile=trusted)
    try:
        with (
            socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE_S) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
        ):
            return sock.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError:
        return None


def infer(connection: http.client.HTTPConnection) -> list[float]:
    connection.request("POST", INFER, BODY)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    found: list[float] = json.loads(response.read())["outputs"][0]["data"]
    return found


def test_requests_over_tls_and_a_new_certificate_by_a_reload(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = {**LOGGED, "ssl_certfile": cert, "ssl_keyfile": key, "frontends": 2}
    with serving("Affine", server=server) as pool:
        until(lambda: f"https://127.0.0.1:{pool.port} serves affine" in pool.log, "its address")
        assert pool.status()["url"] == f"https://127.0.0.1:{pool.port}"
        context = ssl.create_default_context(cafile=cert)
        kept = http.client.HTTPSConnection(
            "127.0.0.1", pool.port, context=context, timeout=PATIENCE_S
        )
        assert infer(kept) == infer(kept) == [3, 5, 7, 9]
        kept.request("GET", "/openapi.json")
        document = json.loads(kept.getresponse().read())
        assert document["servers"] == [{"url": f"https://127.0.0.1:{pool.port}"}]
        plain = http.client.HTTPConnection("127.0.0.1", pool.port, timeout=PATIENCE_S)
        with pytest.raises((http.client.HTTPException, OSError)):
            infer(plain)
        old = peer_certificate(pool, cert)
        assert old is not None
        other_cert, other_key = certificate(tmp_path, "other")
        os.replace(other_cert, cert)  # half of a new one
        done, text = ask_reload(pool.socket, wait=True)
        assert not done
        assert "the key belongs to another certificate" in text
        os.replace(other_key, key)
        done, text = ask_reload(pool.socket, wait=True)
        assert done, text
        until(lambda: peer_certificate(pool, cert) not in (None, old), "the new certificate")
        assert infer(kept) == [3, 5, 7, 9], "a connection outlives its certificate"
        kept.close()


def test_a_pool_does_not_start_with_a_key_of_another_certificate(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    _, key = certificate(tmp_path, "other")
    with started("Affine", server={"ssl_certfile": cert, "ssl_keyfile": key}) as pool:
        pool.expected_status = 2
        assert pool.wait_end() == 2
        assert "the key belongs to another certificate" in pool.last_line


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("pool", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._path)


@pytest.mark.long
def test_a_unix_socket_instead_of_the_port_behind_nginx(tmp_path: Path) -> None:
    path = str(tmp_path / "http")
    server = {**LOGGED, "port": 0, "uds": path, "uds_mode": "600", "frontends": 2}
    server["forwarded_allow_ips"] = ["unix:"]
    with serving("Affine", server=server) as pool:
        until(lambda: f"unix:{path} serves affine" in pool.log, "its address")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        direct = UnixConnection(path)
        assert infer(direct) == [3, 5, 7, 9]
        direct.close()
        until(lambda: access_lines(pool), "a line")
        assert access_lines(pool)[0]["peer"] == "unix"
        with nginx(pool, f"unix:{path}") as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("POST", f"/pool{INFER}", BODY, {"X-Forwarded-For": "203.0.113.5"})
            assert connection.getresponse().status == 200
            connection.close()
        until(lambda: len(access_lines(pool)) == 2, "another line")
        # nginx has appended its own caller, which nobody trusts here.
        assert access_lines(pool)[1]["peer"] == "127.0.0.1"
    assert not os.path.exists(path)


def test_a_unix_socket_of_systemd_takes_http(tmp_path: Path) -> None:
    path = str(tmp_path / "http")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        with serving("Affine", **passing([sock], "http")) as pool:
            connection = UnixConnection(path)
            assert infer(connection) == [3, 5, 7, 9]
            connection.close()
            until(lambda: f"unix:{path} serves affine" in pool.log, "its address")
    assert os.path.exists(path), "it is systemd's"


def test_localhost_is_listened_on_in_every_family() -> None:
    hosts = {entry[4][0] for entry in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    with serving("Affine", server={"host": "localhost", "frontends": 2}) as pool:
        for host in hosts:
            connection = http.client.HTTPConnection(host, pool.port, timeout=PATIENCE_S)
            assert infer(connection) == [3, 5, 7, 9]
            connection.close()
