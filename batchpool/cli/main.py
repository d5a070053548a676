"""The command line's parser, and what its commands' errors end in.

Importing this imports neither torch nor an HTTP library; each command imports what it needs.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, NoReturn

from batchpool.cli.configured import add_config_argument, add_pool_arguments
from batchpool.cli.explain import config, layout
from batchpool.cli.operate import (
    DRAIN_EPILOG,
    DRAIN_HELP,
    RELOAD_EPILOG,
    RELOAD_HELP,
    drain,
    reload,
    seconds,
)
from batchpool.cli.serve import check, serve
from batchpool.cli.status import SOME_BATCHES, batches_of, status
from batchpool.core.config_file import near
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.flags import add_flags, flag_names
from batchpool.core.manual import EXAMPLE_IMPORT
from batchpool.pool import logs

EXIT_START = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

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
    text = " ".join(str(message).split())
    if logs.are_for_programs():
        logging.getLogger("batchpool.supervisor").error("%s", text)
    else:
        with suppress(OSError):  # nobody reads it
            print("batchpool: error:", text, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. argv: without the program's name."""
    args = parse(sys.argv[1:] if argv is None else argv)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except ConfigError as exc:
        _complain(exc)
        return EXIT_USAGE
    except StartError as exc:
        _complain(exc)
        return EXIT_START
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # whoever read it has had enough
        return 0
    except OSError as exc:
        if exc.errno not in _CANNOT_WRITE:
            raise
        _drop_output()
        _complain(f"cannot write the output: {exc.strerror}")
        return EXIT_START


def _drop_output() -> None:
    """Python must not try to flush it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line; `words` is the line itself."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest:
        hint = near(rest[0].partition("=")[0], ["--model", *flag_names()])
        parser.error(f"unknown argument {rest[0]}" + (hint if "did you mean" in hint else ""))
    args.words = list(argv)
    return args


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
        commands, "serve", serve, "serve models over HTTP and shared memory until stopped"
    )
    _add_config_command(
        commands, "check", check, "print what serve would start, and whether it fits"
    )
    asks = _add(commands, "status", status, "print the state of a running pool")
    add_pool_arguments(asks)
    asks.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asks.add_argument(
        "--batches",
        type=batches_of,
        nargs="?",
        const=SOME_BATCHES,
        metavar="N",
        help=f"print the last N batches instead, newest last (default {SOME_BATCHES}, most 1024)",
    )
    _add_operations(commands)
    draws = _add(commands, "layout", layout, "draw the shared memory of a model's lane")
    draws.add_argument("model", metavar="MODULE:CLASS", help="the model's class")
    draws.add_argument(
        "--slots", metavar="N", type=int, help="rows the lane holds (default: as serve chooses)"
    )
    _add(commands, "config", config, "print a configuration file with every key explained")
    return parser


def _add_operations(commands: Any) -> None:
    """What tells a running pool what to do."""
    reloads = _add(commands, "reload", reload, RELOAD_HELP, epilog=RELOAD_EPILOG)
    add_pool_arguments(reloads)
    reloads.add_argument(
        "--no-wait", action="store_true", help="ask for it and do not wait for its end"
    )
    drains = _add(commands, "drain", drain, DRAIN_HELP, epilog=DRAIN_EPILOG)
    add_pool_arguments(drains)
    drains.add_argument(
        "--timeout-s",
        metavar="N",
        type=seconds,
        default=30.0,
        help="how long to wait for the answers (default 30)",
    )
    drains.add_argument("--undo", action="store_true", help="take requests again")


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
    add_config_argument(parser)
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
