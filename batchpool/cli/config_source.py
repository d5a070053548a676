"""The configuration, and the running pool, that a command line names."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from batchpool.cli.reference import EXAMPLE_IMPORT
from batchpool.core.config.flags import model_of, with_flags, with_options
from batchpool.core.config.import_names import IMPORT_NAME
from batchpool.core.config.paths import MODEL_PATH, socket_path
from batchpool.core.config.ready_models import ready_model
from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.toml_file import load_toml
from batchpool.core.errors import ConfigError


def read(path: str) -> Config:
    """The configuration in a file.

    Raises ConfigError also for a path that is not a regular file: reading a pipe would wait.
    """
    file = Path(path)
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ConfigError(f"{path} is not a regular file")
        text = file.read_text(encoding="utf-8")
    except OSError as exc:
        advice = ""
        if IMPORT_NAME.fullmatch(path) or ready_model(path):
            advice = f"; a configuration file was expected: serve and check take --model {path}"
        raise ConfigError(f"cannot read {path}: {exc.strerror}{advice}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text: {exc.reason} at byte {exc.start}") from None
    return load_toml(text, path)


def config_of(args: argparse.Namespace) -> Config:
    """The configuration of `serve` and `check`: file, then --model, then flags."""
    config = Config()
    if args.config:
        config = read(args.config)
        _find_models_beside(args.config)
    models = config.models + tuple(model_of(name) for name in args.model)
    if not models and args.config:
        raise ConfigError(f"{args.config}: no [[model]] in it, and no --model given")
    example = not models
    if example:
        models = (ModelConfig(import_name=EXAMPLE_IMPORT, devices="cpu"),)
    models = with_options(models, len(config.models), args.option)
    config = with_flags(Config(config.server, models), args)
    if example and config.server.log_format != "json":
        with suppress(OSError):  # stderr is closed
            print(f"no model given: the example {EXAMPLE_IMPORT} on the CPU", file=sys.stderr)
    return config


def _find_models_beside(path: str) -> None:
    """Let the processes that this one starts find models' modules beside a configuration file."""
    folders = [os.path.dirname(os.path.abspath(path)), os.environ.get(MODEL_PATH, "")]
    os.environ[MODEL_PATH] = os.pathsep.join(filter(None, folders))


def add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a running pool: its configuration, its socket or its port."""
    add_config_argument(parser)
    add_socket_arguments(parser)


def add_socket_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a running pool by its socket or its port."""
    parser.add_argument("--socket", metavar="PATH", help="the pool's socket (default: by port)")
    parser.add_argument("--port", metavar="N", type=int, help="the pool's port (default 8000)")


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG.toml", help="configuration file (default: none)"
    )


def pool_socket(args: argparse.Namespace) -> str:
    """The control socket of the pool that `add_pool_arguments` names."""
    server = read(args.config).server if args.config else ServerConfig()
    if args.port is not None:
        server = replace(server, port=args.port)
    if args.socket is not None:
        server = replace(server, socket=args.socket)
    return socket_path(server, os.environ, os.getuid())
