"""The schema of the configuration: one dataclass for each table, with every default and range.

    Config
      server: ServerConfig            the table [server]
      models: (ModelConfig, ...)      one table [[model]] each

A field carries its own documentation (`Key`): help, unit, allowed range. The checks below, the
flags (core/config/flags.py), the TOML file (core/config/toml_file.py) and the reference in the
documents derive from it. A value is checked when its dataclass is created, so that every `Config`
is a legal one.

TOML and Python spell two things differently: the key `import` is the field `import_name`, and
"auto" stands for 0 where 0 means that the pool decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from batchpool.core.config.import_names import IMPORT_NAME
from batchpool.core.config.key import (
    MOST_ROWS,
    Devices,
    Key,
    Options,
    Sizes,
    Texts,
    as_value,
    expectation,
    shown,
)
from batchpool.core.config.network_names import PREFIX, is_host, is_origin, is_trusted_peer
from batchpool.core.errors import ConfigError

_DEFAULT_MAX_BATCH = 64
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _key(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field with its documentation; `facts` are further attributes of its `Key`."""
    metadata = {"default": default, "help": help, **facts}
    made: Any = {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    return field(metadata=metadata, **made)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The table [server]: one per pool."""

    host: str = _key(
        "127.0.0.1",
        "address to listen on; of a name, as localhost, all addresses; 0.0.0.0 means every address"
        " of IPv4",
        form="a host name or address",
        auto='every address, of IPv6 and IPv4, as "*" and "::" do',
    )
    port: int = _key(8000, "TCP port; 0 means none, which takes uds", most=65535)
    uds: str = _key(
        "",
        "unix socket on which HTTP is answered too, without TLS",
        form="a path",
        auto="none",
    )
    uds_mode: str = _key(
        "660",
        "mode of the file uds: who may connect",
        pattern=re.compile("[0-7]{3}"),
        form="three octal digits",
    )
    uds_group: str = _key("", "group of the file uds", form="a name", auto="the pool's own")
    ssl_certfile: str = _key(
        "",
        "certificate of the server as PEM, with those that lead to a known authority; HTTP is then"
        " spoken over TLS alone",
        form="a path",
        auto="no TLS",
    )
    ssl_keyfile: str = _key(
        "",
        "key of the certificate as PEM, without a password",
        form="a path",
        auto="that it stands in ssl_certfile",
    )
    frontends: int = _key(
        0, "HTTP front-end processes", most=256, auto="a quarter of the cores, 1 to 4"
    )
    socket: str = _key(
        "",
        "unix socket of local clients and of the command line",
        form="a path",
        auto="batchpool.sock (batchpool-PORT.sock unless the port is 8000) in $RUNTIME_DIRECTORY,"
        " else /run/batchpool for root, else $XDG_RUNTIME_DIR/batchpool, else /tmp/batchpool-UID",
    )
    state_dir: str = _key(
        "",
        "directory of what must outlive the pool",
        form="a path",
        auto="$STATE_DIRECTORY, else /var/lib/batchpool for root, else"
        " $XDG_STATE_HOME/batchpool, else ~/.local/state/batchpool",
    )
    max_clients: int = _key(32, "local clients attached at the same time; 0 admits none", most=1024)
    client_slots: int = _key(
        1024,
        "rows in flight of one local client to one model; fewer where they take over 256 MiB",
        unit="rows",
        least=1,
        most=1 << 20,
    )
    max_body_mib: int = _key(64, "largest HTTP request body", unit="MiB", least=1, most=1 << 20)
    max_bodies_mib: int = _key(
        0,
        "bytes of requests (arriving, waiting, being decoded) and of unread responses that one"
        " front end holds; what would exceed it is refused with 503",
        unit="MiB",
        most=1 << 30,
        auto="eight times max_body_mib",
    )
    receive_timeout_s: float = _key(
        120.0,
        "time a request gets to arrive, headers and body; after it the answer is 408",
        unit="seconds",
        least=0.1,
        most=86400,
    )
    load_timeout_s: float = _key(
        600.0, "time a model gets to load and warm up", unit="seconds", least=0.1, most=86400
    )
    stall_timeout_s: float = _key(
        4.0,
        "time without progress after which a batcher or front end (stopped, deadlocked, in an"
        " endless loop) is killed and replaced; 0 never does that, else at least 0.1",
        unit="seconds",
        most=3600,
    )
    drain_s: float = _key(
        30.0, "time that accepted requests get to finish at shutdown", unit="seconds", most=86400
    )
    unload_timeout_s: float = _key(
        10.0,
        "time a worker that is to end gets for Model.unload and the end of its Python; after it the"
        " worker is killed",
        unit="seconds",
        least=0.1,
        most=86400,
    )
    page: bool = _key(
        True, "whether the live page at /, its stream /events and the API's page /docs are served"
    )
    model_control_mode: str = _key(
        "none",
        "whether HTTP callers may load models (POST /v2/repository/models/M/load), which reloads"
        " the pool; none: they get 403; explicit: every caller may",
        choices=("none", "explicit"),
    )
    log_level: str = _key(
        "info",
        "least severe messages that are logged",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _key(
        "auto",
        "how the log on stderr is written; human: lines for people; json: one object a line; auto:"
        " human, in the journal with priorities instead of times",
        choices=("auto", "human", "json"),
    )
    access_log: str = _key(
        "off",
        "which HTTP requests get a line in the log, whatever log_level is; errors: those with an"
        " answer of 400 or above, or whose caller left; all: also a share of the good ones, but for"
        " probes of health and metrics",
        choices=("off", "errors", "all"),
    )
    access_log_sample: float = _key(
        1.0,
        'share of the good requests that access_log = "all" logs; whether one is in it depends'
        " on its request id alone, if it has one",
        most=1,
    )

    forwarded_allow_ips: Texts = _key(  # noqa: RUF009
        (),
        "proxies that are believed: who connects from one of these is the caller that"
        " X-Forwarded-For or Forwarded names; [] believes nobody",
        check=is_trusted_peer,
        form='addresses, networks (as "10.0.0.0/8"), "unix:" for unix sockets, or "*" for all',
    )
    root_path: str = _key(
        "",
        "path under which a proxy shows this server; a proxy that is believed may say another in"
        " X-Forwarded-Prefix",
        pattern=PREFIX,
        form='a path without a slash at its end, as "/pool"',
        auto="none",
    )
    allowed_hosts: Texts = _key(  # noqa: RUF009
        (),
        "host names by which this server may be asked; other requests are refused with 400; []"
        " allows every name",
        check=is_host,
        form='host names or addresses without port, as "example.com" or "*.example.com"',
    )
    cors_origins: Texts = _key(  # noqa: RUF009
        (),
        "web pages of other sites that may ask this server from a browser (CORS); [] allows none",
        check=is_origin,
        form='origins, as "https://example.com", or "*" for every site',
    )
    api_keys_file: str = _key(
        "",
        "file with the keys of callers, lines NAME:KEY or NAME:sha256:DIGITS; everything but the"
        " server's health is then answered to callers with a key alone",
        form="a path",
        auto="no keys: everybody is answered",
    )

    def __post_init__(self) -> None:
        _check_fields(self)
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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The table [[model]]: one per model that is served."""

    import_name: str = _key(
        "",
        "the model's class; modules in the current directory and beside this file are found",
        name="import",
        pattern=IMPORT_NAME,
        form='MODULE:CLASS, as "my_models:Scale"',
    )
    name: str = _key(
        "",
        "how callers address the model",
        pattern=MODEL_NAME,
        form="letters, digits, '.', '_' and '-', at most 128, the first a letter or digit",
        auto="what the class says",
    )
    options: Options = _key(  # noqa: RUF009
        {},
        "keyword arguments of the __init__ of the model's class; a table [model.options] behind the"
        " model's other keys says the same. No place for secrets: check and status show them",
        form='them, as {path = "model.onnx"}',
    )
    devices: Devices = _key(  # noqa: RUF009
        "auto",
        'where it runs: "auto" is every visible GPU, or the CPU where there is none or the'
        ' model cannot use one; "cpu"; or positions in the list of visible GPUs',
    )
    workers_per_device: int = _key(1, "worker processes on each device", least=1, most=64)
    cpu_threads: int = _key(
        0,
        "threads with which each worker computes on the CPU; goes before OMP_NUM_THREADS",
        unit="threads",
        most=1024,
        auto="OMP_NUM_THREADS, else the cores divided among the workers that compute there",
    )
    max_batch: int = _key(
        _DEFAULT_MAX_BATCH, "most rows of one batch", unit="rows", least=1, most=MOST_ROWS
    )
    batch_sizes: Sizes = _key(  # noqa: RUF009
        (),
        "the only sizes that the engine takes: a batch is padded to the next one, and the largest"
        " is max_batch; [] means that any number of rows will do",
        unit="rows",
    )
    policy: str = _key(
        "adaptive",
        "how batches are formed; fixed: one leaves when it is full or has waited max_wait_ms;"
        " adaptive: at once where waiting for more rows does not pay",
        choices=("adaptive", "fixed"),
    )
    max_wait_ms: float = _key(
        10.0,
        "longest wait of a row for others while a worker is idle",
        unit="milliseconds",
        most=60000,
    )
    max_wait_peak_ms: float = _key(
        100.0,
        "longest wait of a row for others under heavy load, when rows come in at more than half of"
        " the workers' rate; policy adaptive",
        unit="milliseconds",
        most=60000,
    )
    target_p99_ms: float = _key(
        0.0,
        "99 of 100 requests are to be answered within this time: it bounds batches and waits, and"
        " what cannot make it is refused at once with 503; 0 means no target; policy adaptive",
        unit="milliseconds",
        most=3600000,
    )
    preprocess_workers: int = _key(
        0,
        "processes that run preprocess, of a model that defines it",
        most=256,
        auto="the cores that the other processes leave, shared by all such models",
    )
    preprocess_max_batch: int = _key(
        16, "most rows of one call of preprocess", unit="rows", least=1, most=MOST_ROWS
    )
    slots: int = _key(
        0,
        "rows in flight over all front ends; each front end gets an equal part, at least max_batch",
        unit="rows",
        most=1 << 20,
        auto="the largest power of two up to 4096 that takes at most 1 GiB",
    )
    watermark: float = _key(
        0.9,
        "share of a lane's slots that may be in use; above it requests are refused with 503",
        least=0.2,
        most=1,
    )
    request_timeout_s: float = _key(
        30.0, "deadline of a request that brings none", unit="seconds", least=0.001, most=86400
    )
    batch_timeout_s: float = _key(
        30.0,
        "time one batch gets; after that its worker is restarted",
        unit="seconds",
        least=0.01,
        most=86400,
    )
    attempts: int = _key(
        3, "failed batches of a row before its error; 2 where the model raises", least=1, most=100
    )
    idempotent: bool = _key(
        True,
        "whether a row may be run again after the worker that had it was lost, or when a reload"
        " brings other tensors in the middle of a local call of several windows",
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.target_p99_ms and self.policy != "adaptive":
            raise ConfigError(
                f"target_p99_ms = {self.target_p99_ms:g}: policy = {shown(self.policy)} cannot"
                ' keep it; expected policy = "adaptive"'
            )
        if self.batch_sizes:
            largest = self.batch_sizes[-1]
            if self.max_batch not in (largest, _DEFAULT_MAX_BATCH):
                raise ConfigError(
                    f"max_batch = {self.max_batch}: batch_sizes = {shown(self.batch_sizes)}"
                    f" ends at {largest}; leave max_batch out"
                )
            object.__setattr__(self, "max_batch", largest)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration. Of models of one class at most one may leave its name out."""

    server: ServerConfig = field(default_factory=ServerConfig)
    models: tuple[ModelConfig, ...] = ()

    def __post_init__(self) -> None:
        names = [model.name for model in self.models if model.name]
        imports = [model.import_name for model in self.models if not model.name]
        for what, said, where in (("name", names, ""), ("import", imports, " without a name")):
            for value in said:
                if said.count(value) > 1:
                    raise ConfigError(
                        f"[[model]]: {what} = {shown(value)} stands {said.count(value)} times"
                        f"{where}; every model needs its own name"
                    )


TABLES: dict[str, type[ServerConfig] | type[ModelConfig]] = {
    "server": ServerConfig,
    "model": ModelConfig,
}


_KEYS: dict[type, dict[str, Key]] = {
    table: {
        key.name: key
        for key in (
            Key(**{"name": f.name, **f.metadata}, field=f.name, kind=str(f.type))
            for f in fields(table)
        )
    }
    for table in TABLES.values()
}


def keys_of(table: type) -> dict[str, Key]:
    """The keys of a table's dataclass by their TOML names, in the order of the documents."""
    return _KEYS[table]


def _check_fields(table: ServerConfig | ModelConfig) -> None:
    for key in keys_of(type(table)).values():
        value = getattr(table, key.field)
        try:
            value = as_value(key, value)
        except ValueError:
            expected = expectation(key, value)
            raise ConfigError(f"{key.name} = {shown(value)}: expected {expected}") from None
        object.__setattr__(table, key.field, value)
