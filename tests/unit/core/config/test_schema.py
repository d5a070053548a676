"""The TOML road: defaults, every kind of mistake with its message, ranges."""

from __future__ import annotations

import dataclasses

import pytest

from batchpool.core.config.key import Key, as_value, shown
from batchpool.core.config.schema import TABLES, Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.config.toml_file import load_toml, near
from batchpool.core.errors import ConfigError


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_toml(text, "pool.toml")
    return str(caught.value)


def test_the_empty_file_is_the_defaults() -> None:
    config = load_toml("", "pool.toml")
    assert config == Config()
    assert dataclasses.asdict(config.server) == {
        "host": "127.0.0.1",
        "port": 8000,
        "uds": "",
        "uds_mode": "660",
        "uds_group": "",
        "ssl_certfile": "",
        "ssl_keyfile": "",
        "frontends": 0,
        "socket": "",
        "state_dir": "",
        "max_clients": 32,
        "client_slots": 1024,
        "max_body_mib": 64,
        "max_bodies_mib": 0,
        "receive_timeout_s": 120.0,
        "load_timeout_s": 600.0,
        "stall_timeout_s": 4.0,
        "drain_s": 30.0,
        "unload_timeout_s": 10.0,
        "tasks": False,
        "tasks_store": "",
        "tasks_store_password_file": "",
        "tasks_lease_s": 10.0,
        "tasks_max": 1_000_000,
        "tasks_max_mib": 4096,
        "tasks_caller_share": 0.75,
        "task_max_body_mib": 64,
        "task_result_ttl_s": 3600.0,
        "task_evict_on_read": True,
        "task_collect_grace_s": 60.0,
        "task_max_age_s": 86400.0,
        "task_attempts": 3,
        "task_nice": 5,
        "task_alert_command": "",
        "batches": False,
        "files_max": 10_000,
        "files_max_mib": 4096,
        "file_max_mib": 200,
        "file_ttl_s": 2_592_000.0,
        "batch_max_lines": 50_000,
        "page": True,
        "model_control_mode": "none",
        "log_level": "info",
        "log_format": "auto",
        "access_log": "off",
        "access_log_sample": 1.0,
        "forwarded_allow_ips": (),
        "root_path": "",
        "allowed_hosts": (),
        "cors_origins": (),
        "api_keys_file": "",
    }
    assert config.models == ()


def test_a_model_needs_only_its_import() -> None:
    config = load_toml('[[model]]\nimport = "my_models:Scale"', "pool.toml")
    (model,) = config.models
    assert dataclasses.asdict(model) == {
        "import_name": "my_models:Scale",
        "name": "",
        "options": {},
        "devices": "auto",
        "workers_per_device": 1,
        "cpu_threads": 0,
        "max_batch": 64,
        "batch_sizes": (),
        "max_batch_elements": 0,
        "policy": "adaptive",
        "max_wait_ms": 10.0,
        "max_wait_peak_ms": 100.0,
        "target_p99_ms": 0.0,
        "background_slowdown": 0.25,
        "preprocess_workers": 0,
        "preprocess_max_batch": 16,
        "postprocess_workers": 0,
        "postprocess_max_batch": 16,
        "slots": 0,
        "input_arena_mib": 0,
        "watermark": 0.9,
        "request_timeout_s": 0.0,
        "batch_timeout_s": 30.0,
        "attempts": 3,
        "idempotent": True,
    }


def test_every_value_of_a_full_file_arrives() -> None:
    config = load_toml(
        """
        [server]
        host = "::"
        port = 9000
        frontends = "auto"
        log_level = "debug"
        drain_s = 5
        [[model]]
        import = "a.b:C.D"
        name = "first"
        devices = [2, 0]
        max_wait_ms = 2.5
        slots = "auto"
        idempotent = false
        [[model]]
        import = "a.b:E"
        devices = "cpu"
        slots = 100
        """,
        "pool.toml",
    )
    assert config.server == ServerConfig(host="::", port=9000, log_level="debug", drain_s=5.0)
    assert type(config.server.drain_s) is float
    assert config.models == (
        ModelConfig(
            import_name="a.b:C.D",
            name="first",
            devices=(2, 0),
            max_wait_ms=2.5,
            slots=0,
            idempotent=False,
        ),
        ModelConfig(import_name="a.b:E", devices="cpu", slots=100),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 8000", '[server]: unknown key prot = 8000; did you mean "port"?'),
        (
            '[[model]]\nimport = "a:B"\npreprocess_workers = 0',
            '[[model]] 1: preprocess_workers = 0: expected a whole number from 1 to 256 or "auto"',
        ),
        (
            '[[model]]\nimport = "a:B"\nrequest_timeout_s = 0.0',
            "[[model]] 1: request_timeout_s = 0.0: expected a number of seconds from 0.001 to"
            ' 86400 or "auto"',
        ),
        (
            "[server]\nmax_batch = 8",
            "[server]: unknown key max_batch = 8; it belongs into a table [[model]]",
        ),
        (
            '[[model]]\nimport = "a:B"\nport = 1',
            "[[model]] 1: unknown key port = 1; it belongs into a table [server]",
        ),
        (
            "port = 1",
            "unknown key port = 1 outside of any table; it belongs into a table [server]",
        ),
        ("[sever]\nport = 1", 'unknown table [sever]; did you mean "server"?'),
        ("[zzz]", "unknown table [zzz]; known: server, model"),
        ("[[server]]", "server = [{}]: expected one table [server]"),
        ("server = 3", "server = 3: expected one table [server]"),
        ('[model]\nimport = "a:B"', "[model] must be written [[model]], one for each model"),
        ("model = [3]", "[model] must be written [[model]], one for each model"),
        (
            "[server]\nport = 0",
            "port = 0: expected a TCP port from 1 to 65535, or uds",
        ),
        (
            '[server]\nport = "8000"',
            '[server]: port = "8000": expected a whole number from 0 to 65535',
        ),
        (
            "[server]\nport = true",
            "[server]: port = true: expected a whole number from 0 to 65535",
        ),
        (
            "[server]\nport = 8000.0",
            "[server]: port = 8000.0: expected a whole number from 0 to 65535",
        ),
        (
            "[server]\ndrain_s = nan",
            "[server]: drain_s = nan: expected a number of seconds from 0 to 86400",
        ),
        (
            "[server]\ndrain_s = inf",
            "[server]: drain_s = inf: expected a number of seconds from 0 to 86400",
        ),
        (
            '[server]\nfrontends = "some"',
            '[server]: frontends = "some": expected a whole number from 1 to 256 or "auto"',
        ),
        ("[server]\nhost = 1", "[server]: host = 1: expected a host name or address"),
        (
            '[server]\nlog_level = "loud"',
            '[server]: log_level = "loud": expected one of "debug", "info", "warning", "error"',
        ),
        (
            "[[model]]\nname = 'x'",
            '[[model]] 1: the key "import" is missing; expected MODULE:CLASS, as "my_models:Scale"',
        ),
        (
            "[[model]]\nimport = 'a:B'\n[[model]]\nimport = 'a.py'",
            '[[model]] 2: import = "a.py": expected MODULE:CLASS, as "my_models:Scale"',
        ),
        (
            "[[model]]\nimport = 'a:B'\nname = 'a/b'",
            "[[model]] 1: name = \"a/b\": expected letters, digits, '.', '_' and '-',"
            " at most 128, the first a letter or digit",
        ),
        (
            "[[model]]\nimport = 'a:B'\nmax_batch = 65537",
            "[[model]] 1: max_batch = 65537: expected a whole number of rows from 1 to 65536",
        ),
        (
            "[[model]]\nimport = 'a:B'\nidempotent = 1",
            "[[model]] 1: idempotent = 1: expected true or false",
        ),
        (
            "[[model]]\nimport = 'a:B'\n[[model]]\nimport = 'a:B'",
            '[[model]]: import = "a:B" stands 2 times without a name; every model needs its own'
            " name",
        ),
        (
            "[[model]]\nimport = 'a:B'\nname = 'x'\n[[model]]\nimport = 'a:C'\nname = 'x'",
            '[[model]]: name = "x" stands 2 times; every model needs its own name',
        ),
        ("[server", "not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    assert refusal(text).startswith(f"pool.toml: {message}")


@pytest.mark.parametrize("devices", ["[]", "[0, 0]", "[-1]", "[true]", "[0.0]", '"gpu"', "0", "{}"])
def test_devices_that_are_none(devices: str) -> None:
    assert refusal(f"[[model]]\nimport = 'a:B'\ndevices = {devices}").endswith(
        'expected "auto", "cpu" or a list of device numbers without repeats, as [0, 1]'
    )


def test_numbers_beyond_any_size_are_refused_not_fatal() -> None:
    assert "expected a whole number" in refusal("[server]\nport = 1" + "0" * 1000)
    assert "not valid TOML" in refusal("[server]\nport = 1" + "0" * 5000)


def test_deep_nesting_is_refused_not_fatal() -> None:
    assert refusal("a = " + "[" * 100_000).startswith("pool.toml: not valid TOML")


@pytest.mark.parametrize("seconds", [0, 0.1, 4, 3600])
def test_a_stall_timeout_that_can_be_kept(seconds: float) -> None:
    text = f"[server]\nstall_timeout_s = {seconds}"
    assert load_toml(text, "pool.toml").server.stall_timeout_s == seconds


@pytest.mark.parametrize("seconds", [0.0001, 0.099])
def test_a_stall_timeout_too_short_for_healthy_processes(seconds: float) -> None:
    assert refusal(f"[server]\nstall_timeout_s = {seconds}") == (
        f"pool.toml: stall_timeout_s = {seconds}: expected 0 or at least 0.1 seconds"
    )


def test_batches_need_the_process_of_tasks() -> None:
    assert refusal("[server]\nbatches = true") == (
        "pool.toml: batches = true, but tasks = false: expected tasks = true, whose process keeps"
        " files and runs batches"
    )


def test_a_command_for_alerts_has_both_its_quotes() -> None:
    with pytest.raises(ConfigError, match=r"task_alert_command = .*: No closing quotation; expec"):
        ServerConfig(task_alert_command="curl -d 'a")
    assert ServerConfig(task_alert_command="curl -d 'a b'").task_alert_command == "curl -d 'a b'"


def test_the_bound_of_all_bodies_lets_the_largest_in() -> None:
    assert refusal("[server]\nmax_body_mib = 9\nmax_bodies_mib = 8") == (
        "pool.toml: max_bodies_mib = 8: a body may have max_body_mib = 9; expected at least as much"
    )
    text = '[server]\nmax_body_mib = 9\nmax_bodies_mib = "auto"'
    assert load_toml(text, "pool.toml").server.max_bodies_mib == 0


def test_one_class_may_be_several_models() -> None:
    named = "[[model]]\nimport = 'a:B'\nname = '{}'\n"
    text = "[[model]]\nimport = 'a:B'\n" + named.format("x") + named.format("y")
    found = load_toml(text, "pool.toml").models
    assert [(model.import_name, model.name) for model in found] == [
        ("a:B", ""), ("a:B", "x"), ("a:B", "y"),
    ]  # fmt: skip


def test_a_config_made_in_python_passes_the_same_checks() -> None:
    with pytest.raises(ConfigError, match=r"^port = 0: expected a TCP port from 1 to"):
        ServerConfig(port=0)
    with pytest.raises(ConfigError, match=r'^import = "": expected MODULE:CLASS'):
        ModelConfig()
    with pytest.raises(ConfigError, match="stands 2 times"):
        Config(models=(ModelConfig(import_name="a:B"), ModelConfig(import_name="a:B")))


ALL_KEYS = [key for table in TABLES.values() for key in keys_of(table).values()]


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_the_manual_of_every_key_is_complete(key: Key) -> None:
    assert key.help
    if key.field != "import_name":
        assert as_value(key, key.default) == key.default
    if key.kind in ("int", "float"):
        assert key.most > key.least
        assert as_value(key, key.most if key.kind == "float" else int(key.most)) == key.most
        for value in (key.least - 1, key.most + 1):
            with pytest.raises(ValueError):
                as_value(key, int(value) if key.kind == "int" else value)
    for suffix, unit in (("_s", "seconds"), ("_ms", "milliseconds"), ("_mib", "MiB")):
        assert (key.unit == unit) == key.name.endswith(suffix)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ('a"b\\c\n', '"a\\"b\\\\c\\n"'),
        ((0, 1), "[0, 1]"),
        ({"a": [False]}, "{a = [false]}"),
        ("x" * 100, '"' + "x" * 56 + "..."),
    ],
)
def test_values_are_shown_as_toml_writes_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_near_offers_the_one_or_lists_all() -> None:
    assert near("max_bach", ["max_batch", "port"]) == '; did you mean "max_batch"?'
    assert near("colour", ["max_batch", "port"]) == "; known: max_batch, port"


def test_batch_sizes_set_max_batch() -> None:
    config = load_toml('[[model]]\nimport = "a:B"\nbatch_sizes = [1, 8, 32]', "pool.toml")
    assert config.models[0].batch_sizes == (1, 8, 32)
    assert config.models[0].max_batch == 32
    assert ModelConfig(import_name="a:B", batch_sizes=(128,)).max_batch == 128
    assert ModelConfig(import_name="a:B", batch_sizes=(96,), max_batch=96).max_batch == 96


@pytest.mark.parametrize("sizes", ["[0, 8]", "[8, 8]", "[8, 1]", "8", "[true]", "[1.5]", "[65537]"])
def test_batch_sizes_rise_from_one(sizes: str) -> None:
    text = refusal(f'[[model]]\nimport = "a:B"\nbatch_sizes = {sizes}')
    assert f"batch_sizes = {sizes}: expected a list of rows from 1 to 65536" in text
    assert "each larger than the one before" in text


def test_batch_sizes_and_another_max_batch_contradict_each_other() -> None:
    text = refusal('[[model]]\nimport = "a:B"\nbatch_sizes = [8, 32]\nmax_batch = 16')
    assert text == (
        "pool.toml: [[model]] 1: max_batch = 16: batch_sizes = [8, 32] ends at 32;"
        " leave max_batch out"
    )


def test_a_target_needs_the_adaptive_policy() -> None:
    text = refusal('[[model]]\nimport = "a:B"\ntarget_p99_ms = 50\npolicy = "fixed"')
    assert 'target_p99_ms = 50: policy = "fixed" cannot keep it' in text
