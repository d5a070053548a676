"""The schema of the configuration: one dataclass for each table, with every default and range.

    Config
      server: ServerConfig            the table [server]
      models: (ModelConfig, ...)      one table [[model]] each

A field carries its own documentation (`Key`): help, unit, allowed range. The checks below, the
flags (core/config/flags.py), the TOML file (core/config/toml_file.py) and the reference in the
documents derive from it. A value is checked when its dataclass is created, so that every `Config`
is a legal one.

TOML and Python spell two things differently: the key `import` is the field `import_name`, and
"auto" is the field's 0, which means that the pool decides and cannot be written in TOML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from batchpool.core.config.import_names import IMPORT_NAME
from batchpool.core.config.key import (
    MOST_ROWS,
    Devices,
    Options,
    Sizes,
    shown,
)
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import check_fields, key_field
from batchpool.core.errors import ConfigError

_DEFAULT_MAX_BATCH = 64
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The table [[model]]: one per model that is served."""

    import_name: str = key_field(
        "",
        "the model's class; modules in the current directory and beside this file are found",
        name="import",
        pattern=IMPORT_NAME,
        form='MODULE:CLASS, as "my_models:Scale"',
    )
    name: str = key_field(
        "",
        "how callers address the model",
        pattern=MODEL_NAME,
        form="letters, digits, '.', '_' and '-', at most 128, the first a letter or digit",
        auto="what the class says",
    )
    options: Options = key_field(  # noqa: RUF009
        {},
        "keyword arguments of the __init__ of the model's class; a table [model.options] behind the"
        " model's other keys says the same. No place for secrets: check and status show them",
        form='them, as {path = "model.onnx"}',
    )
    devices: Devices = key_field(  # noqa: RUF009
        "auto",
        'where it runs: "auto" is every visible GPU, or the CPU where there is none or the'
        ' model cannot use one; "cpu"; or positions in the list of visible GPUs',
    )
    workers_per_device: int = key_field(1, "worker processes on each device", least=1, most=64)
    cpu_threads: int = key_field(
        0,
        "threads with which each worker computes on the CPU; goes before OMP_NUM_THREADS",
        unit="threads",
        most=1024,
        auto="OMP_NUM_THREADS, else the cores divided among the workers that compute there",
    )
    max_batch: int = key_field(
        _DEFAULT_MAX_BATCH,
        "most rows of one batch; of a generator, the most sequences that run at once in a worker",
        unit="rows",
        least=1,
        most=MOST_ROWS,
    )
    batch_sizes: Sizes = key_field(  # noqa: RUF009
        (),
        "the only sizes that the engine takes: a batch is padded to the next one, and the largest"
        " is max_batch; [] means that any number of rows will do",
        unit="rows",
    )
    max_batch_elements: int = key_field(
        0,
        "most elements of each input of a batch, rows x the row's shape as it is padded: fewer rows"
        " share a batch where they are long, and a row above it runs alone; 0 means no bound. Where"
        " the workers run preprocess and it makes rows of dynamic size, eight bytes of an input"
        " count as an element, and 0 means 2048 of them",
        unit="elements",
        most=1 << 40,
    )
    policy: str = key_field(
        "adaptive",
        "how batches are formed; fixed: one leaves when it is full or has waited max_wait_ms;"
        " adaptive: at once where waiting for more rows does not pay",
        choices=("adaptive", "fixed"),
    )
    max_wait_ms: float = key_field(
        10.0,
        "longest wait of a row for others while a worker is idle",
        unit="milliseconds",
        most=60000,
    )
    max_wait_peak_ms: float = key_field(
        100.0,
        "longest wait of a row for others under heavy load, when rows come in at more than half of"
        " the workers' rate; policy adaptive",
        unit="milliseconds",
        most=60000,
    )
    target_p99_ms: float = key_field(
        0.0,
        "99 of 100 requests are to be answered within this time: it bounds batches and waits, and"
        " what cannot make it is refused at once with 503; 0 means no target; policy adaptive",
        unit="milliseconds",
        most=3600000,
    )
    background_slowdown: float = key_field(
        0.25,
        "the share of its time by which rows of tasks, and others of priority 200 and behind, may"
        " lengthen a batch while requests that somebody waits for come in; more lets tasks be done"
        " sooner, and those requests wait longer",
        most=1000,
    )
    preprocess_workers: int = key_field(
        0,
        "processes that run preprocess, of a model that defines it",
        most=256,
        auto="none where infer runs on the CPU, whose workers run it themselves (unless"
        " postprocess_workers is a number); else the cores that the other processes leave, shared"
        " by all such models",
    )
    preprocess_max_batch: int = key_field(
        16, "most rows of one call of preprocess", unit="rows", least=1, most=MOST_ROWS
    )
    postprocess_workers: int = key_field(
        0,
        "processes that run postprocess, of a model that defines it",
        most=256,
        auto="none where infer runs on the CPU, whose workers run it themselves (unless"
        " preprocess_workers is a number); else the cores that the other processes leave, shared by"
        " all such models",
    )
    postprocess_max_batch: int = key_field(
        16, "most rows of one call of postprocess", unit="rows", least=1, most=MOST_ROWS
    )
    slots: int = key_field(
        0,
        "rows in flight over all front ends; each front end gets an equal part, at least max_batch",
        unit="rows",
        most=1 << 20,
        auto="the largest power of two up to 4096 that takes at most 1 GiB, for a generator no"
        " more than the first one from 16 x max_batch on, so that none waits for very long",
    )
    input_arena_mib: int = key_field(
        0,
        "memory, over all front ends, of inputs that are bytes or have dynamic dimensions and whose"
        " rows may take 256 KiB or more: each row in flight takes what it needs of it; each front"
        " end gets an equal part, at least two of the largest rows",
        unit="MiB",
        most=1 << 20,
        auto="128 KiB for each slot, at most 256 MiB and at least four of the largest rows in each"
        " front end",
    )
    watermark: float = key_field(
        0.9,
        "share of a lane's slots, and of its input arena, that may be in use; above it requests are"
        " refused with 503",
        least=0.2,
        most=1,
    )
    request_timeout_s: float = key_field(
        0.0,
        "deadline of a request that brings none",
        unit="seconds",
        least=0.001,
        most=86400,
        auto="30, and 600 for a generator",
    )
    batch_timeout_s: float = key_field(
        30.0,
        "time one batch gets, or one step of a generator; after that its worker is restarted",
        unit="seconds",
        least=0.01,
        most=86400,
    )
    attempts: int = key_field(
        3, "failed batches of a row before its error; 2 where the model raises", least=1, most=100
    )
    idempotent: bool = key_field(
        True,
        "whether a row may be run again after the worker that had it was lost, or when a reload"
        " brings other tensors in the middle of a local call of several windows",
    )

    def __post_init__(self) -> None:
        check_fields(self)
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
