"""The argument that was meant by a keyword which is neither an input nor an argument.

The clients take inputs by keyword, so Python itself cannot refuse `infer("m", x=rows, timeout=3)`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from batchpool.core.tensors.spec import ModelSpec

P = ParamSpec("P")
T = TypeVar("T")

# The keywords of the functions that take inputs by keyword too.
_OF_A_CALL = ("parameters", "outputs", "timeout_s", "priority", "errors")
ARGUMENTS = {
    "infer": (*_OF_A_CALL, "copy"),
    "submit": (*_OF_A_CALL, "copy"),
    "map": (*_OF_A_CALL, "window", "ordered", "outage_s"),
    "stream": ("parameters", "timeout_s", "priority", "wait_for_room"),
    "AsyncClient.infer": (*_OF_A_CALL, "copy", "wait_for_room"),
}
_INPUTS = "inputs"  # of all of them, by position alone
# What other libraries and habits call them, without their underscores and units.
_SYNONYMS = {
    **dict.fromkeys(("deadline", "timelimit", "expires", "ttl"), "timeout_s"),
    **dict.fromkeys(("prio", "nice"), "priority"),
    **dict.fromkeys(("params", "param", "options", "kwargs"), "parameters"),
    **dict.fromkeys(("requestedoutputs", "outputnames", "returns"), "outputs"),
    **dict.fromkeys(("onerror", "onerrors", "raiseerrors", "returnerrors", "raises"), "errors"),
    **dict.fromkeys(("batch", "batchsize", "chunk", "chunksize", "concurrency"), "window"),
    **dict.fromkeys(("inorder", "order", "sorted"), "ordered"),
    **dict.fromkeys(("wait", "block", "blocking"), "wait_for_room"),
    **dict.fromkeys(("input", "data", "inputdict"), _INPUTS),
    **dict.fromkeys(("copies", "zerocopy", "nocopy"), "copy"),
    **dict.fromkeys(("pin", "pinmemory"), "pinned"),
    **dict.fromkeys(("path", "uds", "socketpath", "address"), "socket"),
}
_UNITS = ("_seconds", "_secs", "_sec", "_ms", "_s")
_NEAR = 0.75  # of difflib's ratio: "timeout" and "timeout_s" are, "times" and "timeout_s" are not


def meant(name: str, function: str, spec: ModelSpec | None = None) -> str:
    """The end of a message about a keyword that is no input: what was probably meant; "" where
    nothing is near it. function: that it was given to. spec: of the model, where it is known."""
    if spec is not None and any(name == each.name for each in spec.parameters):
        return ""  # the message says that it is a parameter
    own = ARGUMENTS[function]
    if name in own:
        return f"; {name} is an argument of {function} and no input: it stands beside the inputs"
    if homes := [other for other, names in ARGUMENTS.items() if name in names]:
        return f"; {name} is an argument of {' and '.join(homes)}, not of {function}"
    known = {_plain(argument): argument for argument in (*_all_arguments(), _INPUTS)}
    parameters = {_plain(each.name): each.name for each in (spec.parameters if spec else ())}
    inputs = {_plain(each.name): each.name for each in (spec.inputs if spec else ())}
    near = _nearest(_plain(name), [*inputs, *parameters, *known, *_SYNONYMS])
    if near in inputs:
        return f'; did you mean "{inputs[near]}"?'
    if near in parameters:
        return f'; did you mean parameters={{"{parameters[near]}": ...}}?'
    argument = known.get(near) or _SYNONYMS.get(near, "")
    if argument not in known.values():
        return ""
    if argument == _INPUTS:
        return f"; a dict of inputs has no name: {function}('model', {{...}})"
    if argument not in own:
        return meant(argument, function, spec)
    unit = " in seconds" if argument.endswith("_s") and name.lower().endswith("_ms") else ""
    return f"; did you mean {argument}{unit}?"


def says_what_was_meant(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose TypeError about an unknown keyword names the one that is near it."""
    names = function.__code__.co_varnames[: _parameters_of(function)]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            known = {_plain(name): name for name in names[1:]}
            near = _nearest(_plain(unknown[0]), [*known, *_SYNONYMS])
            argument = known.get(near) or _SYNONYMS.get(near, "")
            hint = f"; did you mean {argument}?" if argument in names else ""
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}{hint}")
        return function(*args, **kwargs)

    return called


def _parameters_of(function: Callable[..., object]) -> int:
    code = function.__code__
    return code.co_argcount + code.co_kwonlyargcount


def _all_arguments() -> list[str]:
    return list(dict.fromkeys(name for names in ARGUMENTS.values() for name in names))


def _plain(name: str) -> str:
    """A name without case, unit and underscores."""
    name = name.lower()
    for unit in _UNITS:
        if name.endswith(unit):
            name = name.removesuffix(unit)
            break
    return name.replace("_", "")


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)), "")
