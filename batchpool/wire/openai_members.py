"""The members of a request of OpenAI's API, read one by one so that a refusal names the one."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from batchpool.core.errors import InvalidInput, InvalidRequest, PoolError, TooLarge
from batchpool.wire.json_text import no_text
from batchpool.wire.request import Body, brief

_T = TypeVar("_T")
_Error = TypeVar("_Error", bound=PoolError)

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"
_MANY_BYTES = 256 << 10  # of a body whose strings are counted before they are made
_MOST_STRINGS = 64 << 10
_MOST_MEMBERS = 256  # the API has some fifty
_LONGEST_NAME = 80  # of a member in `param`


def about(member: str, error: _Error) -> _Error:
    """The error with the member that is at fault."""
    error.param = member[:_LONGEST_NAME]
    return error


def about_refused(member: str, error: InvalidInput) -> InvalidInput:
    """The refusal of a model with the member that is at fault: the parameter that its details name,
    which is the same for all rows, else `member`, which has the input."""
    named = error.details.get("parameter")
    if not isinstance(named, str):
        return about(member, error)
    error.row = None
    return about(named, error)


class Members:
    """The members that are yet to be read; those that are null are as if they were absent."""

    def __init__(self, found: dict[str, msgspec.Raw]) -> None:
        self.rest = {name: raw for name, raw in found.items() if bytes(raw) != _NULL}

    @classmethod
    def of(cls, body: Body) -> Members:
        """The members of a whole body. InvalidRequest for what is no JSON object; TooLarge for more
        texts or members than a request can have."""
        if len(body) > _MANY_BYTES:
            raw = bytes(body)
            # The strings are fewer than the quotes that are not escaped.
            if raw.count(b'"') - raw.count(b'\\"') > 2 * _MOST_STRINGS:
                raise TooLarge(
                    f"the body has more than {_MOST_STRINGS} texts; one request takes fewer"
                )
        try:
            found = _MEMBERS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            fault = no_text(body) or f"the body is not the JSON of a request: {str(exc)[:200]}"
        else:
            if len(found) > _MOST_MEMBERS:
                raise TooLarge(
                    f"the body has {len(found)} members; one request has at most {_MOST_MEMBERS}"
                )
            return cls(found)
        place = fault.partition(" has ")[0]
        raise InvalidRequest(fault) if " " in place else about(place, InvalidRequest(fault))

    def raw(self, name: str) -> msgspec.Raw | None:
        """A member's JSON, which then is read; None where it is absent."""
        return self.rest.pop(name, None)

    def take(self, name: str, kind: type[_T], expected: str) -> _T | None:
        """A member's value, which then is read; None where it is absent. expected: what it should
        be, for the InvalidRequest that refuses another."""
        raw = self.raw(name)
        return None if raw is None else value_of(name, raw, kind, expected)

    def required(self, name: str, kind: type[_T], expected: str) -> _T:
        """As `take`; InvalidRequest where the member is absent."""
        value = self.take(name, kind, expected)
        if value is None:
            raise missing(name)
        return value


def missing(name: str) -> InvalidRequest:
    """The error of a member that has to be there."""
    return about(name, InvalidRequest(f"the member {name!r} is missing"))


def value_of(name: str, raw: msgspec.Raw, kind: Any, expected: str) -> Any:
    """The value of some JSON. InvalidRequest names the member, the place in it and what was
    expected."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except UnicodeDecodeError:
        fault = no_text(bytes(raw), of=name) or f"{name} is no UTF-8"
        raise about(name, InvalidRequest(fault)) from None
    except (msgspec.DecodeError, RecursionError) as exc:
        place = name + _place(str(exc))
        text = f"{brief(place)[1:-1]}: {expected} was expected"
        raise about(place, InvalidRequest(text)) from None


def _place(text: str) -> str:
    """Where in a value msgspec found the fault, as "[3].content"; "" for the value itself."""
    found = re.search(r"at `\$([^`]*)`", text)
    return "" if found is None else found[1]
