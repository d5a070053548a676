"""The table [server] of the configuration."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from batchpool.core.config.key import Texts, shown
from batchpool.core.config.network_names import (
    PREFIX,
    STORE_URL,
    has_password,
    is_host,
    is_origin,
    is_trusted_peer,
)
from batchpool.core.config.table import check_fields, key_field
from batchpool.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The table [server]: one per pool."""

    host: str = key_field(
        "127.0.0.1",
        "address to listen on; of a name, as localhost, all addresses; 0.0.0.0 means every address"
        " of IPv4",
        form="a host name or address",
        auto='every address, of IPv6 and IPv4, as "*" and "::" do',
    )
    port: int = key_field(8000, "TCP port; 0 means none, which takes uds", most=65535)
    uds: str = key_field(
        "",
        "unix socket on which HTTP is answered too, without TLS",
        form="a path",
        auto="none",
    )
    uds_mode: str = key_field(
        "660",
        "mode of the file uds: who may connect",
        pattern=re.compile("[0-7]{3}"),
        form="three octal digits",
    )
    uds_group: str = key_field("", "group of the file uds", form="a name", auto="the pool's own")
    ssl_certfile: str = key_field(
        "",
        "certificate of the server as PEM, with those that lead to a known authority; HTTP is then"
        " spoken over TLS alone",
        form="a path",
        auto="no TLS",
    )
    ssl_keyfile: str = key_field(
        "",
        "key of the certificate as PEM, without a password",
        form="a path",
        auto="that it stands in ssl_certfile",
    )
    frontends: int = key_field(
        0, "HTTP front-end processes", most=256, auto="a quarter of the cores, 1 to 4"
    )
    socket: str = key_field(
        "",
        "unix socket of local clients and of the command line",
        form="a path",
        auto="batchpool.sock (batchpool-PORT.sock unless the port is 8000) in $RUNTIME_DIRECTORY,"
        " else /run/batchpool for root, else $XDG_RUNTIME_DIR/batchpool, else /tmp/batchpool-UID",
    )
    state_dir: str = key_field(
        "",
        "directory of what must outlive the pool",
        form="a path",
        auto="$STATE_DIRECTORY, else /var/lib/batchpool for root, else"
        " $XDG_STATE_HOME/batchpool, else ~/.local/state/batchpool",
    )
    max_clients: int = key_field(
        32, "local clients attached at the same time; 0 admits none", most=1024
    )
    client_slots: int = key_field(
        1024,
        "rows in flight of one local client to one model; fewer where they take over 256 MiB",
        unit="rows",
        least=1,
        most=1 << 20,
    )
    max_body_mib: int = key_field(
        64, "largest HTTP request body", unit="MiB", least=1, most=1 << 20
    )
    max_bodies_mib: int = key_field(
        0,
        "bytes of requests (arriving, waiting, being decoded) and of unread responses that one"
        " front end holds; what would exceed it is refused with 503",
        unit="MiB",
        most=1 << 30,
        auto="eight times max_body_mib",
    )
    receive_timeout_s: float = key_field(
        120.0,
        "time a request gets to arrive, headers and body; after it the answer is 408",
        unit="seconds",
        least=0.1,
        most=86400,
    )
    load_timeout_s: float = key_field(
        600.0, "time a model gets to load and warm up", unit="seconds", least=0.1, most=86400
    )
    stall_timeout_s: float = key_field(
        4.0,
        "time without progress after which a batcher or front end (stopped, deadlocked, in an"
        " endless loop) is killed and replaced; 0 never does that, else at least 0.1",
        unit="seconds",
        most=3600,
    )
    drain_s: float = key_field(
        30.0, "time that accepted requests get to finish at shutdown", unit="seconds", most=86400
    )
    unload_timeout_s: float = key_field(
        10.0,
        "time a worker that is to end gets for Model.unload and the end of its Python; after it the"
        " worker is killed",
        unit="seconds",
        least=0.1,
        most=86400,
    )
    tasks: bool = key_field(
        False,
        "whether callers may have requests answered later (Prefer: respond-async): such tasks are"
        " kept in state_dir until they are done, whatever dies or restarts meanwhile; without it"
        " that preference is ignored",
    )
    tasks_store: str = key_field(
        "",
        "Redis or Valkey server that keeps tasks for the pools of several machines; needs the extra"
        " redis; a password stands in tasks_store_password_file, never here",
        form="redis://[USER@]HOST[:PORT][/DB], HOST:PORT,HOST:PORT for a cluster, unix://PATH[?db=N],"
        " redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]; rediss for redis is TLS, and takes"
        " ?ssl_ca_certs=/PATH&ssl_certfile=/PATH&ssl_keyfile=/PATH&ssl_check_hostname=false",
        pattern=STORE_URL,
        auto="a database of this pool alone in state_dir",
    )
    tasks_store_password_file: str = key_field(
        "",
        "file whose first line is the password of tasks_store",
        form="a path",
        auto="that of the environment variable BATCHPOOL_TASKS_STORE_PASSWORD, if there is one",
    )
    tasks_lease_s: float = key_field(
        10.0,
        "time after which other pools take over what a pool had claimed that gives no sign of life"
        " to tasks_store",
        unit="seconds",
        least=1,
        most=3600,
    )
    tasks_max: int = key_field(
        1_000_000, "tasks that may wait or run at the same time", least=1, most=1 << 30
    )
    tasks_max_mib: int = key_field(
        4096,
        "bytes of inputs, results and dead letters that are kept; above it new tasks are refused"
        " with 503",
        unit="MiB",
        least=1,
        most=1 << 24,
    )
    tasks_caller_share: float = key_field(
        0.75,
        "part of tasks_max_mib that one caller may have of what others leave: one that is alone has"
        " three quarters, and a newcomer finds room; by its key, else its address with all names in"
        " X-Client-Id; 1 for no share",
        least=0.01,
        most=1,
    )
    task_max_body_mib: int = key_field(
        64, "largest input of one task", unit="MiB", least=1, most=1 << 10
    )
    task_result_ttl_s: float = key_field(
        3600.0, "time that a result waits for its caller", unit="seconds", least=0.1, most=1e7
    )
    task_evict_on_read: bool = key_field(
        True, "whether a result is dropped soon after it was read, not only at the end of its time"
    )
    task_collect_grace_s: float = key_field(
        60.0,
        "time that a result which was read stays, for a connection that broke or a second reader",
        unit="seconds",
        most=86400,
    )
    task_max_age_s: float = key_field(
        86400.0,
        "time that a task may wait and run; after it the task has failed",
        unit="seconds",
        least=0.1,
        most=1e7,
    )
    task_attempts: int = key_field(
        3,
        "times that a task is tried which ends with an error of the model or the pool; of those"
        " that lose their worker two at most",
        least=1,
        most=100,
    )
    task_nice: int = key_field(
        5,
        "how far the task process stands back where processors are short, as `nice` counts it:"
        " tasks then take what requests that somebody waits for leave; 0 for an equal share",
        most=19,
    )
    task_alert_command: str = key_field(
        "",
        "program that is started, at most once a minute, when tasks have become dead letters; it"
        " gets a JSON object on its input",
        form="a command with its arguments, which no shell reads",
        auto="none",
    )
    batches: bool = key_field(
        False,
        "whether callers may upload files of requests and have them answered as batches (OpenAI's"
        " /v1/files and /v1/batches), which are kept in state_dir; needs tasks = true, whose"
        " process runs them",
    )
    files_max: int = key_field(
        10_000,
        "files that are kept, uploaded ones and answers of batches; one caller has at most half of"
        " them",
        least=2,
        most=1 << 20,
    )
    files_max_mib: int = key_field(
        4096,
        "bytes of all files; above it uploads are refused and batches wait; one caller has at most"
        " half of them",
        unit="MiB",
        least=2,
        most=1 << 24,
    )
    file_max_mib: int = key_field(
        200, "largest file that is uploaded", unit="MiB", least=1, most=1 << 20
    )
    file_ttl_s: float = key_field(
        2_592_000.0,
        "time that a file, and a batch that has ended, are kept, unless the caller says another one"
        " for a file",
        unit="seconds",
        least=0.1,
        most=1e9,
    )
    batch_max_lines: int = key_field(50_000, "requests of one batch", least=1, most=1 << 24)
    page: bool = key_field(
        True, "whether the live page at /, its stream /events and the API's page /docs are served"
    )
    model_control_mode: str = key_field(
        "none",
        "whether HTTP callers may load models (POST /v2/repository/models/M/load), which reloads"
        " the pool; none: they get 403; explicit: every caller may",
        choices=("none", "explicit"),
    )
    log_level: str = key_field(
        "info",
        "least severe messages that are logged",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = key_field(
        "auto",
        "how the log on stderr is written; human: lines for people; json: one object a line; auto:"
        " human, in the journal with priorities instead of times",
        choices=("auto", "human", "json"),
    )
    access_log: str = key_field(
        "off",
        "which HTTP requests get a line in the log, whatever log_level is; errors: those with an"
        " answer of 400 or above, or whose caller left; all: also a share of the good ones, but for"
        " probes of health and metrics",
        choices=("off", "errors", "all"),
    )
    access_log_sample: float = key_field(
        1.0,
        'share of the good requests that access_log = "all" logs; whether one is in it depends'
        " on its request id alone, if it has one",
        most=1,
    )

    forwarded_allow_ips: Texts = key_field(  # noqa: RUF009
        (),
        "proxies that are believed: who connects from one of these is the caller that"
        " X-Forwarded-For or Forwarded names; [] believes nobody",
        check=is_trusted_peer,
        form='addresses, networks (as "10.0.0.0/8"), "unix:" for unix sockets, or "*" for all',
    )
    root_path: str = key_field(
        "",
        "path under which a proxy shows this server; a proxy that is believed may say another in"
        " X-Forwarded-Prefix",
        pattern=PREFIX,
        form='a path without a slash at its end, as "/pool"',
        auto="none",
    )
    allowed_hosts: Texts = key_field(  # noqa: RUF009
        (),
        "host names by which this server may be asked; other requests are refused with 400; []"
        " allows every name",
        check=is_host,
        form='host names or addresses without port, as "example.com" or "*.example.com"',
    )
    cors_origins: Texts = key_field(  # noqa: RUF009
        (),
        "web pages of other sites that may ask this server from a browser (CORS); [] allows none",
        check=is_origin,
        form='origins, as "https://example.com", or "*" for every site',
    )
    api_keys_file: str = key_field(
        "",
        "file with the keys of callers, lines NAME:KEY or NAME:sha256:DIGITS; everything but the"
        " server's health is then answered to callers with a key alone",
        form="a path",
        auto="no keys: everybody is answered",
    )

    def __post_init__(self) -> None:
        if isinstance(self.tasks_store, str) and has_password(self.tasks_store):
            raise ConfigError(
                "tasks_store has a password in it, which others would see with the configuration:"
                " put it into a file and its path into tasks_store_password_file, or set"
                " BATCHPOOL_TASKS_STORE_PASSWORD"
            )
        check_fields(self)
        try:
            shlex.split(self.task_alert_command)
        except ValueError as exc:
            raise ConfigError(
                f"task_alert_command = {shown(self.task_alert_command)}: {exc}; expected a command"
                " with its arguments, quoted as in a shell"
            ) from None
        if self.batches and not self.tasks:
            raise ConfigError(
                "batches = true, but tasks = false: expected tasks = true, whose process keeps"
                " files and runs batches"
            )
        if not self.port and not self.uds:
            raise ConfigError("port = 0: expected a TCP port from 1 to 65535, or uds")
        if 0 < self.stall_timeout_s < 0.1:  # less than healthy processes need
            raise ConfigError(
                f"stall_timeout_s = {self.stall_timeout_s:g}: expected 0 or at least 0.1 seconds"
            )
        if 0 < self.max_bodies_mib < self.max_body_mib:
            raise ConfigError(
                f"max_bodies_mib = {self.max_bodies_mib}: a body may have max_body_mib ="
                f" {self.max_body_mib}; expected at least as much"
            )
