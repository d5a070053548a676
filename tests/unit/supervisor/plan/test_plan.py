"""Plans: slots, lanes, bytes, workers on devices, threads, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.layout.segments import (
    MODELS_MOST,
    heartbeats_layout,
    lane_layout,
    state_page_layout,
    worker_layout,
)
from batchpool.core.metrics.segments import counters_layout, flight_recorder_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.memory_limits import size_text
from batchpool.supervisor.plan.plan import ModelPlan, Plan, WorkerPlan, make_plan
from batchpool.supervisor.plan.probe_model import ProbedModel
from batchpool.supervisor.plan.slots import (
    AUTO_LANE_BYTES_MOST,
    CLIENT_LANE_BYTES_MOST,
    auto_slots,
    client_lane,
)
from batchpool.supervisor.plan.threads import WorkerThreads

KIB, MIB = 1 << 10, 1 << 20
SOCKET = "/run/batchpool/batchpool.sock"
THERE = WorkerThreads(4, on_cpu=False)  # of a worker on a GPU


def spec_of_bytes(row_bytes: int, name: str = "m", framework: str = "torch") -> ModelSpec:
    """A model whose row takes `row_bytes` in and one byte out."""
    return ModelSpec(
        name, framework, (Tensor("x", "uint8", (row_bytes,)),), (Tensor("y", "uint8", (1,)),)
    )


SMALL = spec_of_bytes(16)


def plan(
    *,
    server: dict[str, Any] | None = None,
    visible: tuple[str, ...] = (),
    cores: int = 4,
    spec: ModelSpec = SMALL,
    cuda: bool = False,
    **model: Any,
) -> Plan:
    config = Config(ServerConfig(**(server or {})), (ModelConfig(import_name="a:B", **model),))
    return make_plan(config, [ProbedModel("a:B", spec, cuda)], visible, cores, SOCKET)


def the_model(**facts: Any) -> ModelPlan:
    (model,) = plan(**facts).models
    return model


@pytest.mark.parametrize(
    ("cores", "frontends"), [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (16, 4), (64, 4)]
)
def test_front_ends_follow_the_cores(cores: int, frontends: int) -> None:
    assert plan(cores=cores).frontends == frontends


def test_front_ends_as_configured() -> None:
    assert plan(server={"frontends": 7}, cores=2).frontends == 7


class TestSlots:
    def test_small_rows_get_4096(self) -> None:
        model = the_model()
        assert (model.slots, model.lane.slots) == (4096, 4096)

    def test_they_are_split_between_front_ends(self) -> None:
        model = the_model(server={"frontends": 4})
        assert (model.slots, model.lane.slots) == (4096, 1024)
        assert model.lane == lane_layout(SMALL, 1024)

    def test_an_uneven_split_never_gives_more_than_asked(self) -> None:
        model = the_model(server={"frontends": 3}, slots=1000)
        assert (model.slots, model.lane.slots) == (999, 333)

    def test_large_rows_get_the_power_of_two_below_one_gib(self) -> None:
        # An image of 3x224x224 float32 is 588 KiB: 1024 of them are 588 MiB, 2048 too many.
        spec = spec_of_bytes(3 * 224 * 224 * 4)
        model = the_model(spec=spec)
        assert model.slots == 1024
        assert lane_layout(spec, 1024).total_bytes <= AUTO_LANE_BYTES_MOST
        assert lane_layout(spec, 2048).total_bytes > AUTO_LANE_BYTES_MOST

    def test_header_words_count_too(self) -> None:
        # 1024 rows of exactly 1 MiB are the whole GiB, without the header columns.
        assert auto_slots(spec_of_bytes(MIB), 64) == 512

    def test_at_least_max_batch_for_each_front_end(self) -> None:
        model = the_model(server={"frontends": 4}, slots=100, max_batch=64)
        assert (model.slots, model.lane.slots) == (256, 64)
        assert model.notes == (
            "100 slots were asked for, but each front end needs at least max_batch = 64",
            "a front end can have 57 rows in flight, which does not fill a batch of 64;"
            " raise slots",
        )

    def test_automatic_slots_are_at_least_max_batch(self) -> None:
        # Powers of two within 1 GiB end at 512 here; 700 rows fit all the same.
        assert auto_slots(spec_of_bytes(MIB), 700) == 700
        assert the_model(max_batch=5000).slots == 5000

    def test_configured_slots_are_not_bound_by_the_automatic_limit(self) -> None:
        model = the_model(spec=spec_of_bytes(MIB), slots=2048)
        assert model.slots == 2048
        assert model.notes == ()

    def test_rows_that_do_not_fit_are_refused_with_numbers(self) -> None:
        """C13: a row that no budget can hold ends the start."""
        with pytest.raises(StartError) as caught:
            the_model(spec=spec_of_bytes(20 * MIB), max_batch=64)
        assert str(caught.value) == (
            "model m: a row takes 20.0 MiB, so the max_batch = 64 slots of one lane take 1.3 GiB;"
            " slots are chosen automatically up to 1.0 GiB; lower max_batch or the tensors'"
            " maxima, or set slots"
        )
        assert the_model(spec=spec_of_bytes(20 * MIB), max_batch=32).slots == 32
        assert the_model(spec=spec_of_bytes(20 * MIB), max_batch=64, slots=64).slots == 64


class TestClientSlots:
    def test_small_rows_get_what_is_configured(self) -> None:
        assert the_model().client_lane == lane_layout(SMALL, 1024)
        assert the_model(server={"client_slots": 77}).client_lane.slots == 77

    def test_large_rows_get_the_most_that_fits_256_mib(self) -> None:
        spec = spec_of_bytes(MIB)
        slots = client_lane(spec, 1024).slots
        assert lane_layout(spec, slots).total_bytes <= CLIENT_LANE_BYTES_MOST
        assert lane_layout(spec, slots + 1).total_bytes > CLIENT_LANE_BYTES_MOST
        assert slots == 255

    def test_never_less_than_one(self) -> None:
        assert client_lane(spec_of_bytes(300 * MIB), 1024).slots == 1


class TestDevices:
    @pytest.mark.parametrize(
        ("cuda", "visible", "devices"),
        [
            (False, (), "auto"),
            (True, (), "auto"),
            (False, ("0", "1"), "auto"),
            (True, ("0", "1"), "cpu"),
        ],
    )
    def test_the_cpu_has_one_worker(
        self, cuda: bool, visible: tuple[str, ...], devices: str
    ) -> None:
        model = the_model(cuda=cuda, visible=visible, devices=devices)
        assert model.workers == (WorkerPlan(0, "cpu", None, WorkerThreads(4)),)

    def test_auto_is_every_visible_gpu_by_its_own_name(self) -> None:
        """C61: worker i has the i-th entry."""
        model = the_model(cuda=True, visible=("2", "GPU-8932f937"), cores=8)
        assert model.workers == (
            WorkerPlan(0, "cuda:0", "2", THERE),
            WorkerPlan(1, "cuda:0", "GPU-8932f937", THERE),
        )

    def test_numbers_are_positions_in_the_visible_list(self) -> None:
        """C61: never applied twice."""
        model = the_model(cuda=True, visible=("2", "3", "5"), devices=(2, 0))
        assert [worker.cuda_visible for worker in model.workers] == ["5", "2"]

    def test_several_workers_on_a_device_come_after_one_on_each(self) -> None:
        model = the_model(cuda=True, visible=("2", "3"), workers_per_device=2)
        assert [(w.index, w.cuda_visible) for w in model.workers] == [
            (0, "2"),
            (1, "3"),
            (2, "2"),
            (3, "3"),
        ]

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            (
                {"cuda": True, "visible": ("2", "3"), "devices": (0, 2)},
                "devices = [0, 2]: there is no device 2; visible are 0 (2), 1 (3)",
            ),
            (
                {"cuda": True, "devices": (0,)},
                'devices = [0]: no GPU is visible here; expected "auto" or "cpu"',
            ),
            (
                {"cuda": False, "visible": ("0",), "devices": (0,)},
                "devices = [0]: the installed PyTorch is built without CUDA",
            ),
            (
                {
                    "spec": spec_of_bytes(16, framework="numpy"),
                    "visible": ("0",),
                    "devices": (0,),
                },
                'devices = [0]: a model with framework "numpy" runs on the CPU;'
                ' expected "auto" or "cpu"',
            ),
        ],
    )
    def test_devices_that_are_not_there(self, facts: dict[str, Any], message: str) -> None:
        """C61: more than are listed is a start error."""
        with pytest.raises(StartError) as caught:
            plan(**facts)
        assert str(caught.value) == f"model a:B: {message}"

    def test_settings_of_a_worker(self) -> None:
        gpu = WorkerPlan(1, "cuda:0", "GPU-8932f937", THERE)
        assert gpu.settings({"CUDA_VISIBLE_DEVICES": "2,GPU-8932f937"}) == {
            "CUDA_VISIBLE_DEVICES": "GPU-8932f937",
            "OMP_NUM_THREADS": "4",
        }
        assert WorkerPlan(0, "cpu", None, WorkerThreads(4)).settings({"OMP_NUM_THREADS": "2"}) == {
            "OMP_WAIT_POLICY": "PASSIVE"
        }


def two_models(*names: str, **first: Any) -> Plan:
    config = Config(
        ServerConfig(frontends=2, max_clients=3),
        (
            ModelConfig(import_name="a:B", name=names[0], **first),
            ModelConfig(import_name="a:C", name=names[1], devices="cpu", workers_per_device=3),
        ),
    )
    described = [
        ProbedModel("a:B", spec_of_bytes(16, "same"), cuda=True),
        ProbedModel("a:C", spec_of_bytes(4 * KIB, "same"), cuda=True),
    ]
    return make_plan(config, described, ("0", "1"), 12, SOCKET)


def test_threads_are_shared_by_those_who_compute_on_the_cpu() -> None:
    gpu, cpu = two_models("", "other").models
    assert [worker.threads.number for worker in cpu.workers] == [4, 4, 4]
    assert [worker.threads.number for worker in gpu.workers] == [2, 2]


def test_the_number_of_threads_may_be_configured() -> None:
    _, cpu = two_models("", "other").models
    assert cpu.workers[0].threads == WorkerThreads(4)
    ours = plan(cpu_threads=3)
    assert [worker.threads for worker in ours.models[0].workers] == [WorkerThreads(3, fixed=True)]
    assert "\n  threads        3 a worker (cpu_threads); while they wait they sleep\n" in ours.text(
        {"OMP_NUM_THREADS": "9"}
    )


def test_the_sums_are_the_sums_of_the_layouts() -> None:
    whole = two_models("", "other")
    first, second = whole.models
    assert (first.spec.name, second.spec.name) == ("same", "other")
    segment = worker_layout(64, 2 + 3).total_bytes
    assert first.reserved_bytes == 2 * lane_layout(first.spec, 2048).total_bytes + 2 * segment
    assert second.reserved_bytes == 2 * lane_layout(second.spec, 2048).total_bytes + 3 * segment
    assert whole.reserved_bytes == (
        first.reserved_bytes
        + second.reserved_bytes
        + state_page_layout().total_bytes
        + heartbeats_layout(1 + whole.frontends).total_bytes
        + counters_layout(whole.frontends).total_bytes
        + flight_recorder_layout().total_bytes
    )
    assert whole.client_bytes == (
        lane_layout(first.spec, 1024).total_bytes + lane_layout(second.spec, 1024).total_bytes
    )


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        two_models("", "")
    assert str(caught.value) == (
        "models a:B and a:C are both named 'same'; set name in the [[model]] of one of them"
    )


def test_a_class_s_name_must_fit_into_a_url() -> None:
    with pytest.raises(ConfigError, match=r"^model a:B: its name 'a/b' cannot stand in a URL"):
        plan(spec=spec_of_bytes(16, "a/b"))
    assert the_model(spec=spec_of_bytes(16, "a/b"), name="ab").spec.name == "ab"


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:9000"), ("::1", "http://[::1]:9000")],
)
def test_the_url(host: str, url: str) -> None:
    assert plan(server={"host": host, "port": 9000}).url == url


def test_the_text_says_it_all() -> None:
    text = plan(
        spec=spec_of_bytes(60 * KIB, "scale"),
        server={"frontends": 2, "max_clients": 3},
        cuda=True,
        visible=("2", "3"),
        slots=512,
    ).text({})
    assert text == (
        "model scale: a:B, torch\n"
        "  workers        2: cuda:0 (CUDA_VISIBLE_DEVICES=2), cuda:0 (CUDA_VISIBLE_DEVICES=3)\n"
        "  threads        2 a worker\n"
        "  batches        adaptive: at most 64 rows, at most 10 ms of waiting, 100 ms in a flood\n"
        "  slots          512, 256 in each of 2 lanes\n"
        "  watermark      0.9: 503 above 230 rows in a lane, 460 in all\n"
        "  lane           15.1 MiB for each front end, 30.2 MiB in all\n"
        "  local client   1024 slots, 60.3 MiB\n"
        "\n"
        "pool\n"
        "  url            http://127.0.0.1:8000\n"
        f"  socket         {SOCKET}\n"
        "  front ends     2\n"
        "  shared memory  31.7 MiB reserved at start\n"
        "  local clients  at most 3, 60.3 MiB each, reserved when they attach:"
        " up to 181.0 MiB more"
    )


def test_the_text_of_one_front_end_has_no_sums() -> None:
    text = plan(slots=100).text({})
    lane = lane_layout(SMALL, 100).total_bytes
    assert (
        "  slots          100\n"
        "  watermark      0.9: 503 above 90 rows\n"
        f"  lane           {size_text(lane)}\n"
    ) in text


def test_the_text_names_both_that_a_watermark_bounds() -> None:
    pictures = replace(SMALL, inputs=(Tensor("picture", "bytes", max_bytes=8 << 20),))
    text = plan(spec=pictures, slots=100).text({})
    assert "  watermark      0.9: 503 above 90 rows, or 0.9 of the input arena\n" in text


def test_more_models_than_there_are_entries_are_refused() -> None:
    names = [f"m{i}" for i in range(MODELS_MOST + 1)]
    models = [ModelConfig(import_name=f"a:{name}", name=name) for name in names]
    found = [ProbedModel(f"a:{name}", SMALL, cuda=False) for name in names]
    most = Config(ServerConfig(), tuple(models[:-1]))
    assert len(make_plan(most, found[:-1], (), 4, SOCKET).models) == MODELS_MOST
    with pytest.raises(ConfigError, match=r"^65 models; a pool serves at most 64$"):
        make_plan(Config(ServerConfig(), tuple(models)), found, (), 4, SOCKET)


def test_the_text_shows_notes() -> None:
    assert "\n  note           10 slots were asked for" in plan(slots=10).text({})


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"policy": "fixed"}, "fixed: at most 64 rows, at most 10 ms of waiting"),
        (
            {"policy": "fixed", "max_batch_elements": 4096},
            "fixed: at most 64 rows and 4096 elements of an input, at most 10 ms of waiting",
        ),
        (
            {"batch_sizes": (1, 8, 64), "max_wait_peak_ms": 5.0, "target_p99_ms": 50.0},
            "adaptive: 1 or 8 or 64 rows, at most 10 ms of waiting, p99 within 50 ms",
        ),
    ],
)
def test_the_text_says_how_batches_are_formed(keys: dict[str, Any], line: str) -> None:
    assert f"  batches        {line}\n" in plan(**keys).text({})
