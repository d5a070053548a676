"""`batchpool run`: every row of files through a model of a pool, into one file."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from batchpool.cli.config_source import add_socket_arguments, pool_socket
from batchpool.cli.numbers import seconds_to, whole_number
from batchpool.core.config.flags import model_of
from batchpool.core.errors import ConfigError

EXIT_BAD_ROWS = 3
# The reader and the writer of lines hold the interpreter. The thread that has rows under way asks
# for it twice a window, and would wait 5 ms each time.
_SWITCH_S = 0.001
_TOLD_S = 0.1  # of the join; less is nobody's concern
# Those of batchpool/bulk/formats.py, which takes long to import.
OUT_FORMATS = ("jsonl", "csv", "tsv", "npy", "parquet", "arrow")
IN_FORMATS = (*OUT_FORMATS, "files")

RUN_HELP = "run every row of files through a model, into one file; resumable"
RUN_EPILOG = """\
From a file with the lines {"id": 7, "body": "some text"} and a pool that serves the model minilm
(`batchpool serve --model ...`, in another terminal), the command
  batchpool run minilm texts.jsonl -o vectors.jsonl --map text=body --keep id
makes the lines {"id": 7, "embedding": [0.12, -0.03, ...]}, in the order of the input. `batchpool
status` lists the models of the pool; their inputs and outputs are at /v2/models/NAME of its port.

Inputs: JSON Lines, CSV, TSV (each may be packed as .gz), .npy, Parquet, Arrow IPC; any other file
is a row of its own, as a text or a picture, and so is each file below a folder. An input of the
model takes the column of its name; --map INPUT=COLUMN says another one, and --map INPUT=A+B+C makes
a vector of columns of one number each; the columns of files are body and path, that of .npy is
array.
Outputs: .jsonl, .csv, .tsv, .npy, .parquet, .arrow; - is JSON Lines on stdin or stdout. In CSV a
vector has a column for each element: y_0, y_1, ... Parquet and Arrow need pip install
'batchpool[bulk]'.

The output is written in parts, in OUT.parts: whatever ends a run, the same command goes on after
the last part, and OUT is the same to the byte as without the interruption. Bad rows (no JSON, a
missing value, a wrong shape, refused by the model) are in OUT.errors.jsonl with the reason, and not
in OUT; a .npy has NaN or 0 in their places. Callers of the pool who wait for an answer go first.

MODEL is the name of a model of the running pool; MODULE:CLASS or, for instance, onnx:PATH starts a
pool for this run, with the options of `batchpool serve` that follow --.

examples:
  batchpool run minilm texts.parquet -o vectors.parquet --map text=body --keep id
  batchpool run scale rows.npy -o scaled.npy
  batchpool run classifier pictures/ -o labels.jsonl --map image=body --keep path
  batchpool run onnx:fraud.onnx day.csv -o scores.jsonl --map features=amount+hour+age --keep id
  head -100 texts.jsonl | batchpool run minilm - -o -

"""
RUN_EXITS = (
    "every row has its result",
    "stopped: a pool that does not serve, a full disk: the same command goes on from there; a bad"
    "\n     row with --on-error stop: the same command with --on-error skip goes on without it",
)
RUN_MORE_EXITS = f"""\
  {EXIT_BAD_ROWS}  finished, with bad rows: their file says which
  130  interrupted: whole parts are kept; 143 by SIGTERM
"""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `batchpool run`."""
    parser.add_argument(
        "model", metavar="MODEL", help="a model of the running pool, or MODULE:CLASS"
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="files or folders; - is stdin")
    parser.add_argument("-o", "--out", metavar="OUT", required=True, help="the file to write")
    parser.add_argument(
        "--map", metavar="INPUT=COLUMN", action="append", default=[],
        help="the column that an input of the model takes, or INPUT=A+B+C for a vector of several"
        " columns; several with commas, or given several times (default: the column of the input's"
        " name)",
    )  # fmt: skip
    parser.add_argument(
        "--keep",
        metavar="COLUMNS",
        default="",
        help="columns that are copied to the output: id,url",
    )
    parser.add_argument(
        "--outputs",
        metavar="NAMES",
        default="",
        help="outputs of the model to write (default: all)",
    )
    parser.add_argument(
        "--parameter", metavar="NAME=VALUE", action="append", default=[],
        help="a parameter of the model, for all rows; JSON or a text",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=IN_FORMATS, help="form of the inputs (default: by their names)"
    )
    parser.add_argument(
        "--out-format", choices=OUT_FORMATS, help="form of the output (default: by its name)"
    )
    parser.add_argument(
        "--chunk-rows", metavar="N", type=whole_number(),
        help="rows that are read and committed together; what an interruption costs (default: of"
        " about 16 MiB)",
    )  # fmt: skip
    parser.add_argument(
        "--on-error",
        choices=("skip", "stop"),
        default="skip",
        help="a bad row is left out and told of, or stops the run (default: skip)",
    )
    parser.add_argument(
        "--errors",
        metavar="FILE",
        default="",
        help="the file of bad rows (default: OUT.errors.jsonl; stderr with -o -)",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="begin anew: drop parts of before, replace OUT and its errors",
    )
    parser.add_argument(
        "--wait-s", metavar="N", type=seconds_to(1e6), default=300.0,
        help="how long to wait for a pool that restarts or does not serve (default 300)",
    )  # fmt: skip
    add_socket_arguments(parser)
    parser.set_defaults(config=None, serve_words=[])


def run(args: argparse.Namespace) -> int:
    from batchpool.bulk.own_pool import own_pool
    from batchpool.bulk.plan import BulkPlan

    name, words = pool_words(args.model, args.serve_words)
    plan = BulkPlan(
        model=name,
        inputs=args.inputs,
        out=args.out,
        columns=pairs_of("--map", args.map),
        keep=names_of(args.keep),
        outputs=names_of(args.outputs),
        parameters=parameters_of(args.parameter),
        in_format=args.format,
        out_format=args.out_format,
        chunk_rows=args.chunk_rows,
        errors=args.errors,
        skips=args.on_error == "skip",
        restart=args.restart,
        outage_s=args.wait_s,
    )
    if words is None:
        return _run(plan, pool_socket(args))
    if args.socket or args.port:
        raise ConfigError(
            f"{args.model} starts a pool for this run, and --socket or --port names a running one;"
            " one of them was expected"
        )
    print(f"loading {args.model} in a pool of this run", file=sys.stderr, flush=True)
    with own_pool(words) as socket:
        return _run(plan, socket)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, with the status that shells give it. A service manager
    sends it, and the part that is being written counts then."""

    def end(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield  # which Python calls no handler of a signal in
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(plan: Any, socket: str) -> int:
    from batchpool.bulk.progress import counted
    from batchpool.bulk.run import BulkRun

    bulk = BulkRun(plan, socket)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with _ended_by_sigterm():
            end = bulk.run()
    except (KeyboardInterrupt, SystemExit):
        if bulk.progress is not None:
            print(
                f"interrupted at {bulk.progress.line()}; the same command goes on from the last"
                " part",
                file=sys.stderr,
            )
        raise
    finally:
        sys.setswitchinterval(before_s)
    bad = f", {end.bad:,} of them bad: {end.errors or 'see above'}" if end.bad else ""
    joined = f", joined in {end.join_s:.1f} s" if end.join_s >= _TOLD_S else ""
    print(f"{counted(end.rows)}{bad}; {end.rate:,.0f} rows/s{joined}", file=sys.stderr)
    return EXIT_BAD_ROWS if end.bad else 0


def pool_words(model: str, serve_words: Sequence[str]) -> tuple[str, list[str] | None]:
    """(name of the model, options of `batchpool serve` for a pool of the run's own). The name is ""
    for the only one of that pool; the options are None where a running pool serves it."""
    if ":" not in model:
        return model, list(serve_words) if serve_words else None
    model_of(model, "MODEL")
    return "", ["--model", model, *serve_words]


def pairs_of(flag: str, given: Sequence[str], no_cut: str = "") -> dict[str, str]:
    """{name: value} of a flag that may be given several times. no_cut: "" where commas separate
    pairs."""
    found: dict[str, str] = {}
    for text in given:
        for pair in [text] if no_cut else text.split(","):
            name, equals, value = pair.partition("=")
            if not equals or not name or not value:
                raise ConfigError(f"{flag} {pair!r}: NAME=VALUE was expected")
            if name in found:
                raise ConfigError(f"{flag}: {name!r} stands twice")
            found[name] = value
    return found


def names_of(text: str) -> list[str]:
    """Names that commas separate, each once."""
    return [name for name in dict.fromkeys(text.split(",")) if name]


def parameters_of(given: Sequence[str]) -> dict[str, Any]:
    """{parameter: value} of --parameter, which may be given several times."""
    return {name: _json_or_text(text) for name, text in pairs_of("--parameter", given, ",").items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
