"""The options that requests for completions and for chats share.

max_tokens, stop, stream, stream_options    read here
parameters that the generator declares      by their names: temperature, top_p, seed, ...
members of OpenAI's API that it does not    taken where they ask for nothing (`_NEUTRAL`)
any other member                            refused, since it may be a mistyped one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.rows import check_parameters
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.openai_members import Members, about, value_of
from batchpool.wire.request import brief

MAX_TOKENS = "max_tokens"  # the parameter that every generator has
MOST_STOPS = 4
LONGEST_STOP = 256  # characters
_SHORT_BYTES = 256  # of a member; longer ones have so many together:
_MOST_PARAMETER_BYTES = 64 << 10

# The values of members with which they ask for nothing that a generator could leave out.
_ANY = object()
_NEUTRAL: Mapping[str, Any] = {
    "temperature": (0, 1),  # of a generator that takes the most likely token, or draws as it must
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "web_search_options": (),
    "parallel_tool_calls": _ANY,
    **dict.fromkeys(("seed", "user", "store", "metadata", "service_tier", "verbosity"), _ANY),
    **dict.fromkeys(("safety_identifier", "prompt_cache_key", "prompt_cache_retention"), _ANY),
}


class StreamOptions(msgspec.Struct):
    """The member `stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False  # of OpenAI's own servers


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The options of one request.

    max_tokens: None where the request has none.  named: the member that says it.
    default_max_tokens: for a request that has none, where the model makes as many; None for the
    generator's own number.  stops: up to four strings.  stream: the answer is events.  with_usage:
    the last of them says how many tokens there were.  others: the members that are parameters, or
    nothing.
    """

    max_tokens: int | None
    named: str
    default_max_tokens: int | None
    stops: tuple[str, ...]
    stream: bool
    with_usage: bool
    others: Members

    @classmethod
    def of(
        cls,
        members: Members,
        max_tokens: int | None,
        named: str = MAX_TOKENS,
        default: int | None = None,
    ) -> GenerationOptions:
        """The options in the members, all others of which were read. InvalidRequest names the one
        that is at fault. max_tokens, named, default: the first of the options."""
        if max_tokens is not None and max_tokens < 1:
            error = InvalidRequest(f"{named} is {max_tokens}; at least 1 was expected")
            raise about(named, error)
        stream = members.take("stream", bool, "true or false") or False
        options = members.take("stream_options", StreamOptions, "an object")
        if options is not None and not stream:
            error = InvalidRequest(
                "stream_options stands without stream: true, which it belongs to"
            )
            raise about("stream_options", error)
        with_usage = options is not None and options.include_usage
        return cls(max_tokens, named, default, _stops(members), stream, with_usage, members)

    def parameters(self, spec: ModelSpec) -> dict[str, Any]:
        """The values of all parameters of a generator. InvalidRequest or TooLarge name the member
        that is none, or whose value cannot be one."""
        declared = {parameter.name: parameter for parameter in spec.parameters}
        values, most = {}, spec.outputs[0].max_shape[0]
        if self.max_tokens is not None:
            if self.max_tokens > most:
                text = (
                    f"{self.named} is {self.max_tokens}; model {spec.name!r} makes at most {most}"
                )
                raise about(self.named, InvalidRequest(text))
            values[MAX_TOKENS] = self.max_tokens
        elif self.default_max_tokens is not None:
            values[MAX_TOKENS] = min(self.default_max_tokens, most)
        for name, value in self._given().items():
            parameter = declared.get(name)
            if parameter is None:
                _check_neutral(spec, name, value)
                continue
            try:
                parameter.scalar(value)
            except (InvalidRequest, TooLarge) as exc:
                raise about(name, exc) from None
            values[name] = value
        return check_parameters(spec, values)

    def fitted(self, parameters: Mapping[str, Any], room: int) -> dict[str, Any]:
        """The parameters for one prompt. room: the tokens that it leaves of the context.

        A number of tokens that the request did not say is at most that, so that nobody is refused
        for a default. One that it said, and a default of the generator, are the generator's affair.
        """
        values = dict(parameters)
        if self.max_tokens is None and self.default_max_tokens is not None:
            values[MAX_TOKENS] = min(values[MAX_TOKENS], max(1, room))
        return values

    def _given(self) -> dict[str, Any]:
        """The members by name, and those of the member "parameters" too, which is batchpool's."""
        found = {}
        left = _MOST_PARAMETER_BYTES
        for name, raw in self.others.rest.items():
            size = len(memoryview(raw))
            if size <= _SHORT_BYTES:
                found[name] = value_of(name, raw, Any, "JSON")
            elif size <= left:
                left -= size
                found[name] = value_of(name, raw, Any, "JSON")
            elif _NEUTRAL.get(name) is not _ANY:
                text = (
                    f"{brief(name)} has {size} bytes; at most {_MOST_PARAMETER_BYTES} are taken for"
                    " such members together"
                )
                raise about(name, TooLarge(text))
        more = found.pop("parameters", {})
        if not isinstance(more, dict):
            raise about("parameters", InvalidRequest("parameters: an object was expected"))
        return {**found, **more}


def _check_neutral(spec: ModelSpec, name: str, value: Any) -> None:
    """Raise InvalidRequest unless a member that is no parameter asks for nothing."""
    neutral = _NEUTRAL.get(name)
    if neutral is None:
        known = ", ".join(p.name for p in spec.parameters if p.name != MAX_TOKENS) or "none"
        text = f"unknown member {brief(name)}; model {spec.name!r} has the parameters: {known}"
        raise about(name, InvalidRequest(text))
    # True equals 1 in Python, but not in JSON.
    if neutral is _ANY or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral
    ):
        return
    only = " or ".join(msgspec.json.encode(each).decode() for each in neutral) or "no such member"
    text = (
        f"{name} is {brief(value)}, which model {spec.name!r} does not offer; {only} was expected"
    )
    raise about(name, InvalidRequest(text))


def _stops(members: Members) -> tuple[str, ...]:
    found = members.take("stop", str | list[str], "a text or a list of texts")  # type: ignore[arg-type]
    stops = [found] if isinstance(found, str) else found or []
    if len(stops) > MOST_STOPS:
        text = f"stop has {len(stops)} texts; at most {MOST_STOPS} are taken"
        raise about("stop", InvalidRequest(text))
    for stop in stops:
        if not 1 <= len(stop) <= LONGEST_STOP:
            raise about(
                "stop",
                InvalidRequest(
                    f"stop has a text of {len(stop)} characters; 1 to {LONGEST_STOP} were expected"
                ),
            )
    return tuple(stops)
