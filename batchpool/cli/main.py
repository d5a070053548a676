"""The command line: `batchpool serve`, `check`, `status`, `layout`, `config`.

Importing this imports neither torch nor an HTTP library; each command imports what it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from batchpool.core.config import Config, ModelConfig, ServerConfig
from batchpool.core.config_file import load_toml, near
from batchpool.core.errors import ConfigError, PoolError, StartError
from batchpool.core.flags import add_flags, flag_names, model_of, with_flags
from batchpool.core.manual import EXAMPLE_IMPORT, example_toml
from batchpool.core.places import socket_path

EXIT_START = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EXIT_CODES = """\
exit status:
  0  done; for serve: stopped as asked, accepted requests were answered
  1  could not start, or nothing answers: a model that cannot be loaded, a port that is
     taken, too little memory, a device that is not there
  2  wrong usage or configuration
"""
_TOP_EXAMPLES = """\
examples:
  batchpool serve                              a built-in example on the CPU
  batchpool serve --model my_models:Scale      your model, no configuration needed
  batchpool config > batchpool.toml            a configuration with every key explained
  batchpool check batchpool.toml               what would be started, and does it fit
  batchpool serve batchpool.toml --port 9000   flags win over the file

"""
_SERVE_EXAMPLES = """\
examples:
  batchpool serve --model my_models:Scale --max-batch 128 --max-wait-ms 5
  batchpool serve --model my_models:Scale --devices 0,1 --workers-per-device 2
  batchpool serve batchpool.toml --frontends 8 --log-level debug

Flags are named as the keys of the configuration (batchpool config prints them) and win over
it. Units are part of the names: _ms milliseconds, _s seconds, _mib MiB.

"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message} (see {self.prog} --help)")
        raise SystemExit(EXIT_USAGE)


def _complain(message: object) -> None:
    print("batchpool: error:", " ".join(str(message).split()), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. argv: without the program's name."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest:
        hint = near(rest[0].partition("=")[0], ["--model", *flag_names()])
        parser.error(f"unknown argument {rest[0]}" + (hint if "did you mean" in hint else ""))
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        status = command(args)
        sys.stdout.flush()
        return status
    except ConfigError as exc:
        _complain(exc)
        return EXIT_USAGE
    except StartError as exc:
        _complain(exc)
        return EXIT_START
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="batchpool",
        description="Batched model inference for one machine: many clients, shared memory,"
        " one worker per GPU.",
        epilog=_TOP_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"batchpool {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_config_command(
        commands, "serve", _serve, "serve models over HTTP and shared memory until stopped"
    )
    _add_config_command(
        commands, "check", _check, "print what serve would start, and whether it fits"
    )
    status = _add(commands, "status", _status, "print the state of a running pool")
    _add_config_argument(status)
    status.add_argument("--socket", metavar="PATH", help="the pool's socket (default: by port)")
    status.add_argument("--port", metavar="N", type=int, help="the pool's port (default 8000)")
    status.add_argument("--json", action="store_true", help="print JSON instead of a table")
    layout = _add(commands, "layout", _layout, "draw the shared memory of a model's lane")
    layout.add_argument("model", metavar="MODULE:CLASS", help="the model's class")
    layout.add_argument(
        "--slots", metavar="N", type=int, help="rows the lane holds (default: as serve chooses)"
    )
    _add(commands, "config", _config, "print a configuration file with every key explained")
    return parser


def _add(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str, **more: Any
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=more.pop("epilog", "") + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **more,
    )
    parser.set_defaults(command=command)
    return parser


def _add_config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG.toml", help="configuration file (default: none)"
    )


def _add_config_command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str
) -> None:
    parser = _add(
        commands,
        name,
        command,
        text,
        usage=f"batchpool {name} [CONFIG.toml] [--model MODULE:CLASS ...] [flags]",
        epilog=_SERVE_EXAMPLES,
    )
    _add_config_argument(parser)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="a model to serve, besides those of the file; may be given several times (default:"
        f" {EXAMPLE_IMPORT} on the CPU, if there is no file either)",
    )
    add_flags(parser)


def _version() -> str:
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _read(path: str) -> Config:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text: {exc.reason} at byte {exc.start}") from None
    return load_toml(text, path)


def _config_of(args: argparse.Namespace) -> Config:
    """The configuration of `serve` and `check`: file, then --model, then flags."""
    config = _read(args.config) if args.config else Config()
    models = config.models + tuple(model_of(name) for name in args.model)
    if not models and args.config:
        raise ConfigError(f"{args.config}: no [[model]] in it, and no --model given")
    example = not models
    if example:
        models = (ModelConfig(import_name=EXAMPLE_IMPORT, devices="cpu"),)
    config = with_flags(Config(config.server, models), args)
    if example:
        print(f"no model given: the example {EXAMPLE_IMPORT} on the CPU", file=sys.stderr)
    return config


def _serve(args: argparse.Namespace) -> int:
    from batchpool.pool.activation import take_sockets
    from batchpool.pool.herald import tell_of_survey
    from batchpool.pool.notify import take_notifier
    from batchpool.pool.survey import survey
    from batchpool.shm.limits import check_room, read_limits

    # What systemd passes is for this process: taken before another is started.
    notifier = take_notifier(os.environ, os.getpid())
    try:
        activated = take_sockets(os.environ, os.getpid())
        config = _config_of(args)
        path = socket_path(config.server, os.environ, os.getuid())
        config = activated.configured(config, path)
        tell_of_survey(notifier, config)
        plan = survey(config, os.environ)
        check_room(plan.reserved_bytes, read_limits())
        from batchpool.pool import supervisor

        return supervisor.run(plan, notifier, activated)
    except (ConfigError, StartError) as exc:
        notifier.tell(STATUS=f"could not start: {exc}")
        raise
    finally:
        notifier.close()


def _check(args: argparse.Namespace) -> int:
    from batchpool.pool.survey import survey
    from batchpool.shm.limits import check_room, read_limits

    plan = survey(_config_of(args), os.environ)
    print(plan.text())
    sys.stdout.flush()
    check_room(plan.reserved_bytes, read_limits())
    return 0


def _status(args: argparse.Namespace) -> int:
    from batchpool.client.control import ask_status

    server = _read(args.config).server if args.config else ServerConfig()
    if args.port is not None:
        server = replace(server, port=args.port)
    if args.socket is not None:
        server = replace(server, socket=args.socket)
    path = socket_path(server, os.environ, os.getuid())
    try:
        status = ask_status(path)
    except PoolError as exc:
        raise StartError(exc.message) from None
    except OSError as exc:
        raise StartError(f"no pool answers at {path}: {exc}") from None
    print(json.dumps(status, indent=2) if args.json else status_text(status))
    return 0


def _layout(args: argparse.Namespace) -> int:
    from batchpool.core.layout import lane_layout
    from batchpool.pool.described import describe
    from batchpool.pool.plan import auto_slots

    model = replace(
        model_of(args.model, "model"), **({} if args.slots is None else {"slots": args.slots})
    )
    spec = describe(model.import_name).spec
    print(lane_layout(spec, model.slots or auto_slots(spec, model.max_batch)).drawing())
    return 0


def _config(args: argparse.Namespace) -> int:
    print(example_toml(), end="")
    return 0


def status_text(status: dict[str, Any]) -> str:
    """A status as text: first its single values, then its lists of objects as tables."""
    plain = {k: v for k, v in status.items() if not isinstance(v, (list, dict))}
    width = max((len(k) for k in plain), default=0)
    lines = [f"{k:<{width}}  {_cell(v)}" for k, v in plain.items()]
    for name, value in status.items():
        if isinstance(value, dict):
            rows = [
                {"name": k, **v} if isinstance(v, dict) else {"name": k, "value": v}
                for k, v in value.items()
            ]
        elif isinstance(value, list):
            rows = [row if isinstance(row, dict) else {"value": row} for row in value]
        else:
            continue
        lines += ["", name, *(f"  {line}" for line in _table(rows))]
    return "\n".join(lines).strip("\n")


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["none"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns] + [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or "-"
    return json.dumps(value) if isinstance(value, dict) else str(value)
