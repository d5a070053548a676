"""`batchpool tasks` and `batchpool dlq`: the tasks of a running pool, and its dead letters."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from textwrap import indent
from typing import TYPE_CHECKING, Any

from batchpool.cli.config_source import add_socket_arguments, pool_socket
from batchpool.cli.numbers import whole_number
from batchpool.cli.tables import status_text
from batchpool.core.errors import ConfigError, PoolError, StartError
from batchpool.core.text.escape import printable

if TYPE_CHECKING:
    from batchpool.client.task_questions import TaskQuestions
    from batchpool.control.task_messages import LetterForm, TaskForm

_PAGE = 100  # letters that are asked for at once, with their inputs
_LISTED = 20  # where -n does not say another number
_MANY = 2**31
_NUMBER = whole_number(2**62)  # the store's numbers have 63 bits
_SHOWN_CHARACTERS = 4000  # of an input in the text that `show` prints

TASKS_HELP = "list the tasks of a running pool, or show some of them"
TASKS_EPILOG = """\
A task is a request that is answered later (Prefer: respond-async). The pool keeps tasks where its
configuration says tasks = true. Whoever has the id of a task can read its result.

examples:
  batchpool tasks list                          the newest 20
  batchpool tasks list --state failed -n 1000
  batchpool tasks show t_06h2k2v1is000pm5l9f1vvam6u50dst3sko7bgo --json

"""
TASKS_EXITS = ("printed", "nobody answers, or a task that is to be shown is not there")
DLQ_HELP = "list, show, export, replay or drop the dead letters of a running pool"
DLQ_EPILOG = """\
A task that failed for good leaves a dead letter: its input, the error with the model's traceback,
and where it happened. A letter stays until it is replayed or dropped. Replaying makes a new task
with a new id; the one that failed stays failed.

examples:
  batchpool dlq list --code worker_lost
  batchpool dlq show 17
  batchpool dlq export --all > letters.jsonl    each letter with its input, one a line
  batchpool dlq replay --all --model ranker     after its model was repaired
  batchpool dlq drop 17 18

"""
DLQ_EXITS = ("done", "nobody answers, or a letter that is named is not there")

Add = Callable[..., argparse.ArgumentParser]


def add_task_commands(commands: Any, add: Add) -> None:
    """Add both commands. add: adds one command to them."""
    lists = add(commands, "tasks", tasks, TASKS_HELP, TASKS_EXITS, epilog=TASKS_EPILOG)
    _add_action(lists, "list", "show")
    lists.add_argument("ids", metavar="ID", nargs="*", default=[], help="of show: ids of tasks")
    lists.add_argument(
        "--state",
        choices=("queued", "running", "done", "failed", "cancelled"),
        default="",
        help="list only tasks in this state",
    )
    _add_shared_flags(lists)
    letters = add(commands, "dlq", dead_letters, DLQ_HELP, DLQ_EXITS, epilog=DLQ_EPILOG)
    _add_action(letters, *_ACTIONS)
    letters.add_argument(
        "letters", metavar="LETTER", nargs="*", type=_letter_number, default=[],
        help="their numbers; not of list",
    )  # fmt: skip
    letters.add_argument(
        "--code", default="", help="only those with this error, as model_error; of --all and list"
    )
    letters.add_argument(
        "--all",
        action="store_true",
        help="instead of numbers: all that --model and --code leave",
    )
    _add_shared_flags(letters)


def _add_action(parser: argparse.ArgumentParser, *names: str) -> None:
    shown = f"{{{','.join(names)}}}"
    parser.add_argument("action", choices=names, metavar=shown, help="what to do")


def _letter_number(text: str) -> int:
    """Parse the number of a letter on the command line."""
    try:
        return _NUMBER(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the number of a letter; --config names a configuration file"
        ) from None


def _add_shared_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", help="only those of this model")
    parser.add_argument(
        "-n", dest="most", metavar="N", type=whole_number(), help="list at most so many"
        f" (default {_LISTED})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--config", metavar="CONFIG.toml", help="the pool's configuration file")
    add_socket_arguments(parser)


def tasks(args: argparse.Namespace) -> int:
    from batchpool.client.task_questions import TaskQuestions
    from batchpool.control.task_messages import ListTasks, LookAtTasks, TaskList, TaskStates

    if args.action == "list":
        _refuse_words(args.ids)
    elif not args.ids:
        raise ConfigError("tasks show: expected the id of a task")
    else:
        _refuse_choice(args, "tasks show", "ids name them", "--model", "--state")
        _refuse_count(args, "tasks show")
    try:
        with TaskQuestions(pool_socket(args)) as questions:
            if args.action == "list":
                asked = ListTasks(args.state, args.model, _most(args))
                forms = questions.ask(asked, TaskList).tasks
            else:
                forms = questions.ask(LookAtTasks(tuple(args.ids)), TaskStates).tasks
    except PoolError as exc:
        raise StartError(exc.message) from None
    _print("tasks", [_task_row(form) for form in forms], as_json=args.json)
    gone = [form.id for form in forms if not form.model]
    if gone:
        raise StartError(f"there is no task {', '.join(gone)}")
    return 0


def dead_letters(args: argparse.Namespace) -> int:
    from batchpool.client.task_questions import TaskQuestions

    if args.action == "list":
        _refuse_words(args.letters)
    elif args.letters and args.all:
        raise ConfigError(f"dlq {args.action}: expected numbers of letters or --all, not both")
    elif args.letters:
        _refuse_choice(args, f"dlq {args.action}", "numbers name them", "--model", "--code")
    elif not args.all:
        raise ConfigError(f"dlq {args.action}: expected numbers of letters, or --all")
    if args.action != "list":
        _refuse_count(args, f"dlq {args.action}")
    try:
        with TaskQuestions(pool_socket(args)) as questions:
            return _ACTIONS[args.action](questions, args)
    except PoolError as exc:
        raise StartError(exc.message) from None


def _refuse_words(words: Sequence[object]) -> None:
    if words:
        text = " ".join(map(str, words))
        raise ConfigError(
            f"list takes no {text!r}: --config {text} names a configuration file, and show takes"
            " ids and numbers"
        )


def _refuse_choice(args: argparse.Namespace, command: str, instead: str, *flags: str) -> None:
    """Refuse flags that choose where each one is named: they would have no effect."""
    for flag in flags:
        if getattr(args, flag.removeprefix("--")):
            raise ConfigError(f"{command}: {instead}; {flag} has no effect then: leave it out")


def _refuse_count(args: argparse.Namespace, command: str) -> None:
    if args.most is not None:
        raise ConfigError(f"{command}: -n counts the lines of list; leave it out")


def _most(args: argparse.Namespace) -> int:
    return _LISTED if args.most is None else max(0, args.most)


def _list(questions: TaskQuestions, args: argparse.Namespace) -> int:
    found = list(_letters(questions, args, most=_MANY if args.all else _most(args)))
    _print("dead letters", [_letter_row(form) for form in found], as_json=args.json)
    return 0


def _show(questions: TaskQuestions, args: argparse.Namespace) -> int:
    found = list(_each(questions, args, whole=True))
    if args.json:
        print(json.dumps([_letter_object(form) for form in found], indent=2))
    else:
        for form in found:
            letter = _letter_object(form)
            given, trace = letter.pop("input"), letter.pop("traceback", "")
            print(status_text({k: v for k, v in letter.items() if v is not None}))
            if trace:
                print(f"traceback\n{indent(_shown(trace), '  ')}")
            print(f"input     {_cut(json.dumps(given))}\n")
    return 0


def _export(questions: TaskQuestions, args: argparse.Namespace) -> int:
    for form in _each(questions, args, whole=True):
        print(json.dumps(_letter_object(form)))
    return 0


def _replay(questions: TaskQuestions, args: argparse.Namespace) -> int:
    from batchpool.control.task_messages import LettersChanged, ReplayLetters

    numbers = [form.letter for form in _each(questions, args)]
    replayed = 0
    for start in range(0, len(numbers), _PAGE):
        part = tuple(numbers[start : start + _PAGE])
        for letter, new in questions.ask(ReplayLetters(part), LettersChanged).ids.items():
            print(f"{letter}  {new}")
            replayed += 1
    with suppress(OSError):  # stderr is closed
        # stdout has numbers and ids alone, for scripts.
        print(f"replayed {replayed}", file=sys.stderr)
    return 0


def _drop(questions: TaskQuestions, args: argparse.Namespace) -> int:
    from batchpool.control.task_messages import DropLetters, LettersChanged

    numbers = [form.letter for form in _each(questions, args)]
    dropped = 0
    for start in range(0, len(numbers), _PAGE):
        part = tuple(numbers[start : start + _PAGE])
        dropped += len(questions.ask(DropLetters(part), LettersChanged).ids)
    print(f"dropped {dropped}")
    return 0


_ACTIONS = {"list": _list, "show": _show, "export": _export, "replay": _replay, "drop": _drop}


def _each(
    questions: TaskQuestions, args: argparse.Namespace, *, whole: bool = False
) -> Iterator[LetterForm]:
    """The letters that are named, or all that --model and --code leave."""
    if args.letters:
        return iter(_chosen(questions, args, whole=whole))
    return _letters(questions, args, most=_MANY, whole=whole)


def _letters(
    questions: TaskQuestions, args: argparse.Namespace, *, most: int, whole: bool = False
) -> Iterator[LetterForm]:
    """Letters, the newest first, a page at a time."""
    from batchpool.control.task_messages import Letters, ListLetters

    before = 0
    while most > 0:
        asked = ListLetters(args.model, args.code, before, min(_PAGE, most), whole)
        page = questions.ask(asked, Letters).letters
        yield from page
        if len(page) < min(_PAGE, most):
            return
        most -= len(page)
        before = page[-1].letter


def _chosen(questions: TaskQuestions, args: argparse.Namespace, *, whole: bool) -> list[LetterForm]:
    """The letters that are named. Raises StartError for one that is not there."""
    from batchpool.control.task_messages import Letters, ListLetters

    found = []
    for number in args.letters:
        asked = ListLetters(before=max(0, number) + 1, most=1, whole=whole)
        page = questions.ask(asked, Letters).letters
        if not page or page[0].letter != number:
            raise StartError(f"there is no dead letter {number}")
        found.append(page[0])
    return found


def _shown(text: str) -> str:
    """A model's text of several lines for a terminal, without what steers one."""
    return "\n".join(map(printable, text.expandtabs(4).split("\n")))


def _cut(text: str) -> str:
    """The beginning of a long text, with a mark."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return (
        f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters; dlq export, or --json, prints all)"
    )


def _task_row(form: TaskForm) -> dict[str, Any]:
    return {
        "id": form.id,
        "model": form.model or None,
        "state": form.state,
        "attempts": form.attempts,
        "submitted": _time(form.submitted_ms),
        "finished": _time(form.finished_ms),
        "code": form.code or None,
        "error": form.error or None,
    }


def _letter_row(form: LetterForm) -> dict[str, Any]:
    return {
        "letter": form.letter,
        "model": form.model,
        "code": form.code,
        "attempts": form.attempts,
        "rows": form.rows,
        "submitted": _time(form.submitted_ms),
        "died": _time(form.died_ms),
        "error": form.error[:60],
    }


def _letter_object(form: LetterForm) -> dict[str, Any]:
    return {
        **_letter_row(form),
        "error": form.error,
        "task": form.id,
        "caller": form.caller,
        **form.facts,
        "input": _input_of(form),
    }


def _input_of(form: LetterForm) -> Any:
    """The input for people; of a letter that this release cannot read, why: the others are shown
    nevertheless."""
    from batchpool.wire.task_form import input_json

    try:
        return input_json(form.input)
    except Exception as exc:  # the store may be anybody's
        return {"unreadable": f"{type(exc).__name__}: {exc}"[:_SHOWN_CHARACTERS]}


def _time(at_ms: int) -> str | None:
    if not at_ms:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # no time of ours
        return f"{at_ms} ms"


def _print(what: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print(status_text({what: rows}))
