"""A pool behind nginx: callers, a path of its own, connections that stay; and web pages."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchpool.client.control import ask_reload
from tests.ports import free_port
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
CONFIG = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream pool {{ server {upstream}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location /pool/ {{
            proxy_pass http://pool/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto https;
            proxy_set_header X-Forwarded-Prefix /pool;
        }}
    }}
}}
"""


@contextmanager
def nginx(pool: Pool, upstream: str) -> Iterator[int]:
    """nginx in front of an address of the pool; its port."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    folder, port = pool.folder, free_port()
    config = Path(folder) / "nginx.conf"
    user = "" if os.geteuid() else "user root;"  # the pool's folder is its user's alone
    config.write_text(CONFIG.format(user=user, folder=folder, port=port, upstream=upstream))
    process = subprocess.Popen([NGINX, "-c", str(config), "-e", f"{folder}/nginx.log"])
    try:
        until(lambda: responds(port), "nginx's answer")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def responds(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()


def access_lines(pool: Pool) -> list[dict[str, object]]:
    """The lines of the access log."""
    whole = pool.log.rpartition("\n")[0].splitlines()
    lines = [json.loads(line) for line in whole if line.startswith("{")]
    return [line for line in lines if line.get("path")]


def served(pool: Pool) -> list[object]:
    """The callers' addresses of good answers in the access log."""
    return [line["peer"] for line in access_lines(pool) if line["status"] == 200]


INFER = "/v2/models/affine/infer"
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [X]}).encode()
LOGGED = {"access_log": "all", "log_format": "json"}


def test_callers_behind_nginx_are_told_apart_and_the_path_is_theirs() -> None:
    """A sub-path, connections that nginx keeps, and the caller that it names in each of them."""
    server = {**LOGGED, "forwarded_allow_ips": ["127.0.0.1"]}
    with serving("Affine", server=server) as pool, nginx(pool, f"127.0.0.1:{pool.port}") as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for caller in ("203.0.113.1", "203.0.113.2", "203.0.113.1"):
            fields = {"X-Forwarded-For": f"{caller}, 127.0.0.1", "Host": "models.example"}
            connection.request("POST", f"/pool{INFER}", BODY, fields)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert json.loads(response.read())["outputs"][0]["data"] == [3, 5, 7, 9]
        connection.request("GET", "/pool/openapi.json", headers={"Host": "models.example"})
        document = json.loads(connection.getresponse().read())
        assert document["servers"] == [{"url": "https://models.example/pool"}]
        for path in ("/pool/docs", "/pool/page/docs.js", "/pool/v2/health/ready"):
            connection.request("GET", path, headers={"Host": "models.example"})
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
        connection.close()
        until(lambda: len(access_lines(pool)) >= 6, "lines of all requests")
        lines = [line for line in access_lines(pool) if str(line["path"]).endswith("/infer")]
        assert [line["peer"] for line in lines] == ["203.0.113.1", "203.0.113.2", "203.0.113.1"]
        assert {line["road"] for line in lines} == {"fast"}


def test_a_reload_takes_over_proxies_hosts_and_origins() -> None:
    page = {"Origin": "https://app.example"}
    with serving("Affine", server=LOGGED) as pool:
        assert ask(pool, INFER, BODY, page).refused == (403, "forbidden")
        assert ask(pool, INFER, BODY, {"X-Forwarded-For": "203.0.113.9"}).status == 200
        config = pool.folder / "pool.toml"
        more = (
            'forwarded_allow_ips = ["127.0.0.1"]\ncors_origins = ["https://app.example"]\n'
            'allowed_hosts = ["pool.example"]\n'
        )
        config.write_text(config.read_text().replace("[[model]]", f"{more}[[model]]"))
        done, text = ask_reload(pool.socket, wait=True)
        assert done, text
        asked = {**page, "Host": "pool.example", "X-Forwarded-For": "203.0.113.7"}
        answer = until(
            lambda: (found := ask(pool, INFER, BODY, asked)).status == 200 and found,
            "the new origins",
        )
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert ask(pool, INFER, BODY).refused == (400, "invalid_request")
        until(lambda: served(pool)[1:], "a line of each request")
        assert served(pool) == ["127.0.0.1", "203.0.113.7"]
