"""The command line's parser: every command with its flags, help and exit statuses.

Importing this imports neither torch nor an HTTP library; each command imports what it needs.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, NoReturn

from batchpool.cli.completion import COMPLETION_EPILOG, SHELLS, print_completion, print_help
from batchpool.cli.config_source import add_config_argument, add_pool_arguments
from batchpool.cli.consume import (
    CONSUME_EPILOG,
    CONSUME_EXITS,
    CONSUME_HELP,
    add_consume_arguments,
    consume,
)
from batchpool.cli.explain import config, layout
from batchpool.cli.numbers import seconds_to, whole_number
from batchpool.cli.operate import (
    DRAIN_EPILOG,
    DRAIN_EXITS,
    DRAIN_HELP,
    LONGEST_S,
    RELOAD_EPILOG,
    RELOAD_EXITS,
    RELOAD_HELP,
    drain,
    reload,
)
from batchpool.cli.reference import EXAMPLE_IMPORT
from batchpool.cli.run import (
    RUN_EPILOG,
    RUN_EXITS,
    RUN_HELP,
    RUN_MORE_EXITS,
    add_run_arguments,
    run,
)
from batchpool.cli.serve import check, serve
from batchpool.cli.size import SIZE_EPILOG, SIZE_EXITS, SIZE_HELP, add_size_arguments, size
from batchpool.cli.status import SOME_BATCHES, status
from batchpool.cli.tasks import add_task_commands
from batchpool.core.compiled import CODE
from batchpool.core.config.flags import PlacedOption, add_flags
from batchpool.core.config.ready_models import READY_MODELS

EXIT_USAGE = 2

_FEW_OPTIONS = 8  # may be listed in an error
_TOP_EPILOG = """\
examples:
  batchpool serve                              a built-in example on the CPU
  batchpool serve --model my_models:Scale      your model, no configuration needed
  batchpool config > batchpool.toml            a configuration with every key explained
  batchpool check batchpool.toml               what would be started, and does it fit
  batchpool serve batchpool.toml --port 9000   flags win over the file
  batchpool run scale rows.npy -o out.npy      every row of a file through a model of the pool

exit status: 0 done, 1 failed, 2 wrong usage or configuration; batchpool COMMAND --help says
what that means there
"""
_SERVE_EPILOG = """\
examples:
  batchpool serve --model my_models:Scale --max-batch 128 --max-wait-ms 5
  batchpool serve --model my_models:Scale --devices 0,1 --workers-per-device 2
  batchpool serve batchpool.toml --frontends 8 --log-level debug
  batchpool serve --model onnx:fraud.onnx      a file without code, named fraud
  batchpool serve --model small=my_models:Net --option layers=2 \\
                  --model large=my_models:Net --option layers=12

"""
_CHECK_EPILOG = """\
examples:
  batchpool check --model my_models:Scale --max-batch 128
  batchpool check batchpool.toml
  batchpool check batchpool.toml --load        loads every model too, one after the other

"""
_FLAGS = """\
Flags are named as the keys of the configuration (batchpool config prints them) and win over
it. Units are part of the names: _ms milliseconds, _s seconds, _mib MiB.

"""
_SERVE_EXITS = (
    "stopped as asked, accepted requests were answered",
    "could not start: a model that cannot be loaded, a port that is taken, too little memory, a"
    "\n     device that is not there; or stopped with requests under way",
)
_CHECK_EXITS = (
    "it could be started",
    "it could not: a model that cannot be loaded, a port that is taken, too little memory, a"
    "\n     device that is not there",
)
_STATUS_EXITS = ("printed", "nobody answers")
_LAYOUT_EXITS = ("printed", "the model cannot be loaded, or its lane would be too large")
_CONFIG_EXITS = ("printed", "it could not be written")

Command = Callable[[argparse.Namespace], int]


class WrongUsage(Exception):
    """A command line that cannot be parsed; the text is one line."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, and does not ignore that help cannot be written."""

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)

    def unknown(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        """Raise WrongUsage for a name, with the closest known one."""
        known = list(known)
        close = difflib.get_close_matches(name.partition("=")[0], known, n=1)
        if close:
            self.error(f'unknown {what} {name}; did you mean "{close[0]}"?')
        few = name.startswith("-") and len(known) <= _FEW_OPTIONS
        self.error(f"unknown {what} {name}" + (f"; known: {', '.join(known)}" if few else ""))

    @property
    def options(self) -> list[str]:
        """All long options."""
        return [name for name in self._option_string_actions if name.startswith("--")]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, which is also kept as the attribute `words`.

    Raises WrongUsage, and SystemExit after it has printed a help.
    """
    parser, commands = _parser()
    first = words[0] if words else "help"
    if first.startswith("-"):
        if first not in ("-h", "-V", *parser.options):
            parser.unknown("option before the command,", first, parser.options)
    elif first and first not in commands:
        parser.unknown("command", first, commands)
    words, serve_words = _cut_at_dashes(words) if first == "run" else (words, [])
    args, rest = parser.parse_known_args(words or [first])
    if rest:
        of = commands[first]
        if first == "run" and rest[0].partition("=")[0] in commands["serve"].options:
            of.error(f"{rest[0]} is a flag of serve, for the run's own pool: write it behind --")
        of.unknown("argument", rest[0], of.options if rest[0].startswith("-") else ())
    args.words = list(words)
    if serve_words:
        args.serve_words = serve_words
    return args


def _cut_at_dashes(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """The words before -- and those behind it, which are options of another command."""
    at = list(words).index("--") if "--" in words else len(words)
    return words[:at], list(words[at + 1 :])


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="batchpool",
        description="Batched model inference for one machine: many clients, shared memory,"
        " one worker per GPU.",
        epilog=_TOP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"batchpool {_version()} ({CODE})"
    parser.add_argument("-V", "--version", action="version", version=version)
    commands: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    _add_config_command(
        commands,
        "serve",
        serve,
        "serve models over HTTP and shared memory until stopped",
        _SERVE_EPILOG,
        _SERVE_EXITS,
    )
    checks = _add_config_command(
        commands,
        "check",
        check,
        "print what serve would start, and whether it fits",
        _CHECK_EPILOG,
        _CHECK_EXITS,
    )
    checks.add_argument(
        "--load",
        action="store_true",
        help="also load each model on its device and warm it up, as serve would, and print what"
        " that took",
    )
    asks = _add(commands, "status", status, "print the state of a running pool", _STATUS_EXITS)
    add_pool_arguments(asks)
    asks.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asks.add_argument(
        "--batches",
        type=whole_number(),
        nargs="?",
        const=SOME_BATCHES,
        metavar="N",
        help=f"print the last N batches instead, newest last (default {SOME_BATCHES}, most 1024)",
    )
    _add_operations(commands)
    runs = _add(
        commands, "run", run, RUN_HELP, RUN_EXITS, epilog=RUN_EPILOG, more_exits=RUN_MORE_EXITS,
        usage="batchpool run MODEL INPUT... -o OUT [flags] [-- options of serve]",
    )  # fmt: skip
    add_run_arguments(runs)
    consumes = _add(
        commands, "consume", consume, CONSUME_HELP, CONSUME_EXITS, epilog=CONSUME_EPILOG
    )
    add_consume_arguments(consumes)
    add_task_commands(commands, _add)
    sizes = _add(commands, "size", size, SIZE_HELP, SIZE_EXITS, epilog=SIZE_EPILOG)
    add_size_arguments(sizes)
    draws = _add(
        commands, "layout", layout, "draw the shared memory of a model's lane", _LAYOUT_EXITS
    )
    draws.add_argument("model", metavar="MODULE:CLASS", help="the model's class")
    draws.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="as of serve"
    )
    draws.add_argument(
        "--slots", metavar="N", type=int, help="rows the lane holds (default: as serve chooses)"
    )
    _add(
        commands,
        "config",
        config,
        "print a configuration file with every key explained",
        _CONFIG_EXITS,
    )
    _add_own_commands(parser, commands)
    return parser, commands.choices


def _add_own_commands(parser: _Parser, commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the commands that are about the command line itself."""
    completes = _add(
        commands,
        "completion",
        print_completion,
        "print a script for a shell that completes commands, flags and files",
        _CONFIG_EXITS,
        epilog=COMPLETION_EPILOG,
    )
    completes.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    completes.set_defaults(parser=parser, commands=commands.choices)
    helps = _add(
        commands, "help", print_help, "print the help of a command, or this one", _CONFIG_EXITS
    )
    helps.add_argument(
        "about", metavar="COMMAND", nargs="?", choices=list(commands.choices), help="the command"
    )
    helps.set_defaults(parser=parser, commands=commands.choices)


def _add_operations(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the commands that operate a running pool."""
    reloads = _add(commands, "reload", reload, RELOAD_HELP, RELOAD_EXITS, epilog=RELOAD_EPILOG)
    add_pool_arguments(reloads)
    reloads.add_argument(
        "--no-wait", action="store_true", help="ask for it and do not wait for its end"
    )
    reloads.add_argument(
        "--cancel",
        action="store_true",
        help="give up the one under way, as long as it can be undone",
    )
    drains = _add(commands, "drain", drain, DRAIN_HELP, DRAIN_EXITS, epilog=DRAIN_EPILOG)
    add_pool_arguments(drains)
    drains.add_argument(
        "--timeout-s",
        metavar="N",
        type=seconds_to(LONGEST_S),
        default=30.0,
        help="how long to wait for the answers (default 30)",
    )
    drains.add_argument("--undo", action="store_true", help="take requests again")


def _add(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    command: Command,
    text: str,
    exits: tuple[str, str],
    *,
    epilog: str = "",
    more_exits: str = "",
    **more: Any,
) -> _Parser:
    """Add one command. exits: the meanings of the exit statuses 0 and 1."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"{epilog}exit status:\n  0  {exits[0]}\n  1  {exits[1]}\n"
        f"  {EXIT_USAGE}  wrong usage or configuration\n{more_exits}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **more,
    )
    parser.set_defaults(command=command)
    return parser


def _add_config_command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    command: Command,
    text: str,
    epilog: str,
    exits: tuple[str, str],
) -> _Parser:
    parser = _add(
        commands,
        name,
        command,
        text,
        exits,
        usage=f"batchpool {name} [CONFIG.toml] [--model MODULE:CLASS ...] [flags]",
        epilog=epilog + _FLAGS,
    )
    add_config_argument(parser)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="a model to serve, besides those of the file; may be given several times (default:"
        f" {EXAMPLE_IMPORT} on the CPU, if there is no file either). NAME=MODULE:CLASS names it."
        " Models that need no code, named after the path: "
        + ", ".join(f"{word}:PATH" for word in READY_MODELS),
    )
    parser.add_argument(
        "--option",
        action=PlacedOption,
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the __init__ of the model's class (batchpool.toml: [model.options]),"
        " for the --model before it; of one model alone also without. Its type is the argument's:"
        " 5, true, a text as it stands, a,b,c or TOML for lists and tables",
    )
    add_flags(parser)
    return parser


def _version() -> str:
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "(not installed)"
