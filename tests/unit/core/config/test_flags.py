"""Every key is a flag, a flag wins over the file, and its mistakes name the flag."""

from __future__ import annotations

import argparse

import pytest

from batchpool.core.config.flags import add_flags, flag_of, model_of, with_flags
from batchpool.core.config.schema import TABLES, Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import ConfigError

FILE = Config(
    ServerConfig(port=9000, drain_s=1),
    (ModelConfig(import_name="a:B", max_batch=8), ModelConfig(import_name="a:C", max_batch=16)),
)


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parser.parse_args(argv)


def test_no_flags_change_nothing() -> None:
    assert with_flags(FILE, parsed()) == FILE


def test_flags_win_over_the_file_for_every_model() -> None:
    config = with_flags(
        FILE,
        parsed(
            "--port", "7000", "--frontends", "3", "--max-wait-ms", "2.5", "--devices", "1,0",
            "--no-idempotent",
        ),
    )  # fmt: skip
    assert config == Config(
        ServerConfig(port=7000, frontends=3, drain_s=1),
        tuple(
            ModelConfig(
                import_name=name,
                max_batch=rows,
                max_wait_ms=2.5,
                devices=(1, 0),
                idempotent=False,
            )
            for name, rows in (("a:B", 8), ("a:C", 16))
        ),
    )


def test_every_key_but_import_and_options_is_a_flag() -> None:
    samples = {"int": "64", "float": "0.5", "str": "x", "Devices": "cpu", "Sizes": "7"}
    samples |= {"Texts": "*", "root_path": "/pool", "uds_mode": "640"}
    samples |= {"tasks_store": "redis://a", "tasks_lease_s": "2", "task_nice": "7"}
    one = Config(models=(ModelConfig(import_name="a:B"),))
    for table, dataclass in TABLES.items():
        for key in keys_of(dataclass).values():
            if key.name in ("import", "options"):
                continue
            text = (
                key.choices[0] if key.choices else samples.get(key.name, samples.get(key.kind, ""))
            )
            flag = flag_of(key)
            argv = [flag.replace("--", "--no-")] if key.kind == "bool" else [flag, text]
            config = with_flags(one, parsed(*argv))
            changed = config.server if table == "server" else config.models[0]
            kinds = {"int": int, "float": float, "Sizes": lambda size: (int(size),)}
            kinds["Texts"] = lambda text: (text,)
            expected: object = kinds.get(key.kind, str)(text)
            assert getattr(changed, key.field) == (False if key.kind == "bool" else expected)


def test_auto_gives_a_number_back_to_the_pool() -> None:
    file = Config(
        ServerConfig(frontends=3), (ModelConfig(import_name="a:B", slots=9, request_timeout_s=5),)
    )
    words = "--frontends", "auto", "--slots", "auto", "--request-timeout-s", "auto"
    config = with_flags(file, parsed(*words))
    assert config.server.frontends == 0
    assert (config.models[0].slots, config.models[0].request_timeout_s) == (0, 0)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--port", "http"), "--port http: expected a whole number from 0 to 65535"),
        (
            ("--preprocess-workers", "0"),
            "--preprocess-workers 0: expected a whole number from 1 to 256 or auto",
        ),
        (("--preprocess-max-batch", "0"), "--preprocess-max-batch 0: expected a whole number of"),
        (("--port", "70000"), "--port 70000: expected a whole number from 0 to 65535"),
        (
            ("--frontends", "few"),
            "--frontends few: expected a whole number from 1 to 256 or auto",
        ),
        (
            ("--max-wait-ms", "nan"),
            "--max-wait-ms nan: expected a number of milliseconds from 0 to 60000",
        ),
        (
            ("--devices", "0,0"),
            "--devices 0,0: expected auto, cpu or a list of device numbers without repeats, as 0,1",
        ),
        (("--devices", "cuda"), "--devices cuda: expected auto, cpu or a list"),
        (("--policy", "best"), "--policy best: expected one of adaptive, fixed"),
        (("--name", "x"), "--name x: names one model, but 2 are served"),
    ],
)
def test_a_mistake_names_the_flag(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_flags(FILE, parsed(*argv))
    assert str(caught.value).startswith(message)


def test_model_of_takes_module_and_class() -> None:
    assert model_of("my.models:Scale") == ModelConfig(import_name="my.models:Scale")
    with pytest.raises(
        ConfigError, match=r'^--model "scale.py": expected MODULE:CLASS, as "my_models:Scale"$'
    ):
        model_of("scale.py")


def test_help_says_how_an_empty_value_is_written_and_what_leaving_a_flag_out_means() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    texts = {action.dest: action.help or "" for action in parser._actions}
    assert "'' means every address" in texts["server.host"]
    assert texts["server.host"].endswith("(default 127.0.0.1)")
    assert texts["server.uds"].endswith("left out means none")
    assert "(default 2592000)" in texts["server.file_ttl_s"]
    assert "from 0 to 1099511627776" in texts["model.max_batch_elements"]
