"""The deployment plan of a pool: its models, workers, slots, lanes and bytes. Pure.

The configuration, the probed models, the visible GPUs and the number of cores go in, a `Plan` comes
out, before any part of the pool exists. The supervisor builds it, `batchpool check` prints it.

    slots    a model's rows in flight over all front ends: as configured, else the largest
             power of two up to 4096 whose lane takes at most 1 GiB; each front end has an
             equal part of them, at least max_batch
    local    each local client has a lane of `client_slots` slots to each model it uses,
             fewer where that would take more than 256 MiB
    devices  "auto" is every visible GPU for a torch model on a torch with CUDA, else the CPU
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batchpool.core.config.describe import options_text
from batchpool.core.config.schema import MODEL_NAME, Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.core.layout.admission import bound_of
from batchpool.core.layout.segments import (
    Layout,
    heartbeats_layout,
    state_page_layout,
    worker_layout_of,
)
from batchpool.core.metrics.segments import statistics_layouts
from batchpool.core.scheduler.limits import Limits
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import CPU_STAGES, Stage, fused_spec, stages_of, written_by
from batchpool.shm.memory_limits import size_text
from batchpool.supervisor.plan.cpu_stage_counts import (
    CpuShare,
    cpu_stage_counts,
    is_fused,
    stage_place,
)
from batchpool.supervisor.plan.devices import NO_GPU, tokenizer_settings
from batchpool.supervisor.plan.frontend_count import frontends_of
from batchpool.supervisor.plan.generator_settings import at_once, check_settings, request_timeout_s
from batchpool.supervisor.plan.lanes import arena_lines, plan_lanes
from batchpool.supervisor.plan.model_devices import check_places, devices_of
from batchpool.supervisor.plan.probe_model import ProbedModel
from batchpool.supervisor.plan.text_notes import text_notes
from batchpool.supervisor.plan.threads import WorkerThreads, threads_per_worker

_MODELS_LEAST = 4  # the lane tables have room for at least so many, which a reload may add


@dataclass(frozen=True)
class WorkerPlan:
    """One worker process. index: among the model's workers of its stage. device: given to `load`.
    cuda_visible: its GPU, None on the CPU. fused: it runs all stages."""

    index: int
    device: str
    cuda_visible: str | None
    threads: WorkerThreads
    stage: Stage = Stage.INFER
    fused: bool = False

    def settings(self, env: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of the worker besides `env`."""
        settings = self.threads.settings(env)
        if self.stage is not Stage.INFER:
            return {**settings, **tokenizer_settings(str(self.threads.number), env), **NO_GPU}
        if self.fused:
            settings |= tokenizer_settings(self.threads.number_in(env), env)
        if self.cuda_visible is not None:
            settings["CUDA_VISIBLE_DEVICES"] = self.cuda_visible
        return settings


@dataclass(frozen=True)
class ModelPlan:
    """One model.

    spec: as everybody but its workers knows it; declared: as its class declares it, with features
    and predictions also where the workers are fused and the pool knows of none. lane: the layout of
    each front end's lane; client_lane: of each local client's. entry: its number in all tables, the
    same as long as its tensors and slots do not change. workers: those of `infer`; cpu_workers:
    those of the other stages.
    """

    config: ModelConfig
    spec: ModelSpec
    declared: ModelSpec
    workers: tuple[WorkerPlan, ...]
    frontends: int
    lane: Layout
    client_lane: Layout
    worker_segment: Layout
    notes: tuple[str, ...] = ()
    entry: int = 0
    cpu_workers: tuple[WorkerPlan, ...] = ()

    @property
    def all_workers(self) -> tuple[WorkerPlan, ...]:
        """The workers of all stages."""
        return self.workers + self.cpu_workers

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that have workers, in the order in which a row takes them."""
        return tuple(stage for stage in stages_of(self.spec) if self.workers_of(stage))

    @property
    def request_timeout_s(self) -> float:
        """The deadline of a request that brings none, in seconds."""
        return self.config.request_timeout_s or request_timeout_s(self.spec)

    def workers_of(self, stage: Stage) -> tuple[WorkerPlan, ...]:
        """The workers of one stage."""
        return tuple(worker for worker in self.all_workers if worker.stage is stage)

    def max_batch_of(self, worker: WorkerPlan) -> int:
        """The most rows of a batch of this worker."""
        return Limits.of(self.config, worker.stage).max_batch

    def batch_sizes_of(self, worker: WorkerPlan) -> tuple[int, ...]:
        """The only sizes of a batch of this worker; () for any."""
        return tuple(self.config.batch_sizes) if worker.stage is Stage.INFER else ()

    @property
    def cpu_stages(self) -> tuple[Stage, ...]:
        """The stages besides `infer`, in processes of their own or fused."""
        return tuple(stage for stage in CPU_STAGES if stage in stages_of(self.declared))

    @property
    def fused_rows(self) -> dict[str, int]:
        """The most rows of a call of each stage, by its label, that the workers of `infer` run
        themselves."""
        stages = self.cpu_stages if self.workers[0].fused else ()
        return {stage.label: Limits.of(self.config, stage).max_batch for stage in stages}

    @property
    def slots(self) -> int:
        """The model's slots over all front ends."""
        return self.lane.slots * self.frontends

    @property
    def reserved_bytes(self) -> int:
        """Bytes of shared memory reserved for the model at start."""
        lanes = self.lane.total_bytes * self.frontends
        return lanes + self.worker_segment.total_bytes * len(self.all_workers)


@dataclass(frozen=True)
class Plan:
    """A whole pool. socket: the path of the control socket."""

    server: ServerConfig
    frontends: int
    models: tuple[ModelPlan, ...]
    socket: str

    @property
    def scheme(self) -> str:
        """Of its TCP port: https with a certificate."""
        return "https" if self.server.ssl_certfile else "http"

    @property
    def urls(self) -> list[str]:
        """The addresses of HTTP: of the TCP port and of the unix socket, as far as there are."""
        host = "::" if self.server.host in ("", "*") else self.server.host
        host = f"[{host}]" if ":" in host else host
        tcp = [f"{self.scheme}://{host}:{self.server.port}"] if self.server.port else []
        return tcp + ([f"unix:{self.server.uds}"] if self.server.uds else [])

    @property
    def url(self) -> str:
        """The first of them."""
        return self.urls[0]

    @property
    def entries(self) -> dict[int, ModelPlan]:
        """The models by their entries."""
        return {model.entry: model for model in self.models}

    @property
    def max_lanes(self) -> int:
        """The most lanes that the tables hold: those of all clients, and as many that close."""
        return max_lanes(len(self.models), self.frontends, self.server)

    @property
    def heartbeats(self) -> int:
        """The processes that stamp the heartbeats: the batcher, the front ends, and the task
        process."""
        return 1 + self.frontends + self.server.tasks

    @property
    def reserved_bytes(self) -> int:
        """Bytes of shared memory reserved at start."""
        small = (
            *(state_page_layout(), heartbeats_layout(self.heartbeats)),
            *statistics_layouts(self.frontends, tasks=self.server.tasks),
        )
        return sum(layout.total_bytes for layout in small) + sum(
            model.reserved_bytes for model in self.models
        )

    @property
    def client_bytes(self) -> int:
        """Bytes of shared memory of one local client that uses every model."""
        return sum(model.client_lane.total_bytes for model in self.models)

    @property
    def descriptors(self) -> int:
        """About the most descriptors that the supervisor holds for processes, clients and lanes."""
        workers = sum(len(m.all_workers) for m in self.models)
        clients = self.server.max_clients + self.server.tasks
        lanes = len(self.models) * (self.frontends + clients)
        return 32 + 4 * self.frontends + 8 * workers + 3 * clients + 2 * lanes

    def text(self, env: Mapping[str, str], tasks: str = "") -> str:
        """The plan as `batchpool check` prints it: a few lines for each model, then the pool. env:
        of the workers, but for their settings."""
        lines: list[str] = []
        for model in self.models:
            lines += [*_model_lines(model, env), ""]
        clients = self.server.max_clients
        most = size_text(self.client_bytes * clients)
        local = f"{size_text(self.client_bytes)} each, reserved when they attach"
        return "\n".join(
            [
                *lines,
                "pool",
                f"  url            {self.url}",
                f"  socket         {self.socket}",
                f"  front ends     {self.frontends}",
                *([f"  tasks          {tasks}"] if tasks else []),
                f"  shared memory  {size_text(self.reserved_bytes)} reserved at start",
                f"  local clients  at most {clients}, {local}: up to {most} more",
            ]
        )


def _model_lines(model: ModelPlan, env: Mapping[str, str]) -> list[str]:
    config, lane, local = model.config, model.lane, model.client_lane
    workers = ", ".join(
        worker.device
        if worker.cuda_visible is None
        else f"{worker.device} (CUDA_VISIBLE_DEVICES={worker.cuda_visible})"
        for worker in model.workers
    )
    bound, many = bound_of(lane.slots, config.watermark), model.frontends
    slots, rows, lanes = f"{lane.slots}", f"{bound} rows", size_text(lane.total_bytes)
    if many > 1:
        slots = f"{model.slots}, {lane.slots} in each of {many} lanes"
        rows = f"{bound} rows in a lane, {bound * many} in all"
        lanes += f" for each front end, {size_text(lane.total_bytes * many)} in all"
    return [
        f"model {model.spec.name}: {config.import_name}, {model.spec.framework}",
        *([f"  options        {options_text(config.options)}"] if config.options else []),
        f"  workers        {len(model.workers)}: {workers}",
        f"  threads        {model.workers[0].threads.text(env)}",
        *at_once(model.spec, config),
        *_cpu_stage_lines(model),
        f"  slots          {slots}",
        f"  watermark      {config.watermark:g}: 503 above {rows}"
        + (f", or {config.watermark:g} of the input arena" if lane.arena_bytes else ""),
        f"  lane           {lanes}",
        *arena_lines(model.spec, lane, many),
        f"  local client   {local.slots} slots, {size_text(local.total_bytes)}",
        *(f"  note           {note}" for note in model.notes),
    ]


def _cpu_stage_lines(model: ModelPlan) -> list[str]:
    lines = []
    for stage in model.cpu_stages:
        place = stage_place(len(model.workers_of(stage)))
        made = getattr(model.declared, written_by(model.declared, stage))
        names = ", ".join(tensor.name for tensor in made)
        rows = f"at most {Limits.of(model.config, stage).max_batch} rows a call"
        lines.append(f"  {stage.label:<14} {place}, {rows}: {names}")
    return lines


def make_plan(
    config: Config,
    described: Sequence[ProbedModel],
    visible: Sequence[str],
    cores: int,
    socket: str,
) -> Plan:
    """Make the plan of a configuration.

    described: the probed models in the order of the configuration. visible: the GPUs as in
    CUDA_VISIBLE_DEVICES. cores: the number that this pool may use. socket: of the control socket.

    Raises ConfigError for two models of one name, for more than MODELS_MOST and for settings that
    do not apply to a generator, StartError for devices that are not there and for rows that do not
    fit.
    """
    check_places(config.models, visible)
    specs = _named(config.models, described)
    frontends = frontends_of(config.server, cores)
    devices = [
        devices_of(model, found, visible)
        for model, found in zip(config.models, described, strict=True)
    ]
    count = [len(d) * m.workers_per_device for m, d in zip(config.models, devices, strict=True)]
    on_cpu = sum(n for n, d in zip(count, devices, strict=True) if d == [None])
    share = CpuShare(cores, frontends, workers_on_gpus=sum(count) - on_cpu, workers_on_cpu=on_cpu)
    fused = [is_fused(m, s, d) for m, s, d in zip(config.models, specs, devices, strict=True)]
    cpu_stages, cpu_stage_threads = cpu_stage_counts(config.models, specs, share, fused)
    models: list[ModelPlan] = []
    for model, spec, entries in zip(config.models, specs, devices, strict=True):
        sharers = on_cpu if entries == [None] else sum(count)
        number = model.cpu_threads or threads_per_worker(cores, sharers)
        threads = WorkerThreads(number, bool(model.cpu_threads), entries == [None])
        within = fused[len(models)]
        workers = _workers_of(entries * model.workers_per_device, threads, fused=within)
        most = max_lanes(len(specs), frontends, config.server)
        made = _model_plan(model, spec, workers, config.server, frontends, most)
        cpu_workers = tuple(
            WorkerPlan(i, "cpu", None, WorkerThreads(cpu_stage_threads), stage)
            for stage, processes in cpu_stages[len(models)].items()
            for i in range(processes)
        )
        models.append(replace(made, entry=len(models), cpu_workers=cpu_workers))
    return Plan(config.server, frontends, tuple(models), socket)


def lanes_needed(entries: int, plan: Plan) -> int:
    """The number of lanes from every front end and local client to so many entries."""
    return entries * (plan.frontends + plan.server.max_clients + plan.server.tasks)


def max_lanes(models: int, frontends: int, server: ServerConfig) -> int:
    """The most lanes that the tables hold for so many models.

    It is twice the number in use: old lanes close while new ones open.
    """
    clients = server.max_clients + server.tasks  # the task process is one
    return 2 * max(models, _MODELS_LEAST) * (frontends + clients)


def _named(models: Sequence[ModelConfig], described: Sequence[ProbedModel]) -> list[ModelSpec]:
    """Each model's spec under the name it is served by, checked with its settings."""
    specs: list[ModelSpec] = []
    imports: dict[str, str] = {}
    for model, found in zip(models, described, strict=True):
        name = model.name or found.spec.name
        if not MODEL_NAME.fullmatch(name):
            raise ConfigError(
                f"model {model.import_name}: its name {name!r} cannot stand in a URL; expected"
                " letters, digits, '.', '_' and '-', at most 128; set name in its [[model]]"
            )
        if name in imports:
            raise ConfigError(
                f"models {imports[name]} and {model.import_name} are both named {name!r};"
                " set name in the [[model]] of one of them"
            )
        imports[name] = model.import_name
        specs.append(replace(found.spec, name=name))
        check_settings(model, specs[-1])
    return specs


def _workers_of(
    entries: Sequence[str | None], threads: WorkerThreads, *, fused: bool
) -> tuple[WorkerPlan, ...]:
    # Each worker sees one GPU, which is therefore cuda:0 to it.
    return tuple(
        WorkerPlan(i, "cpu" if entry is None else "cuda:0", entry, threads, fused=fused)
        for i, entry in enumerate(entries)
    )


def _model_plan(
    model: ModelConfig,
    declared: ModelSpec,
    workers: tuple[WorkerPlan, ...],
    server: ServerConfig,
    frontends: int,
    most_lanes: int,
) -> ModelPlan:
    spec = fused_spec(declared) if workers[0].fused else declared
    lanes = plan_lanes(model, spec, server, frontends)
    return ModelPlan(
        config=model,
        spec=spec,
        declared=declared,
        workers=workers,
        frontends=frontends,
        lane=lanes.lane,
        client_lane=lanes.client_lane,
        worker_segment=worker_layout_of(
            spec, max(Limits.of(model, stage).max_batch for stage in stages_of(spec)), most_lanes
        ),
        notes=lanes.notes + text_notes(model, spec),
    )
