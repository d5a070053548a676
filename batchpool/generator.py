"""The interface of generators: models that make a sequence of tokens for a prompt, step by step.

A worker runs many sequences at once. At every step new ones may join and those that have ended
leave, so that none waits for the longest one ("continuous" or "iteration-level" batching; Yu et
al., Orca, 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.text import Text
from batchpool.model import Model

MAX_TOKENS = "max_tokens"  # the parameter that every generator has
LEAST_PROMPT = 1  # elements of a prompt, where its declaration does not say
FINISH_REASON = "finish_reason"  # the output beside the tokens: b"stop" or b"length"


@dataclass(frozen=True)
class JoiningSequence:
    """A sequence that joins those that run.

    number: its place among them, 0 to `Generator.sequences` - 1, until it leaves.  prompt: an
    array [prompt size, ...], of at least one element unless the declaration allows none.  tokens:
    [n, *token shape], those that were made already, where a worker goes on with a sequence of
    another one; the next token follows them.  max_tokens: the most that it gets, `tokens` among
    them, 1 or more beyond these.  parameters: by name, one value each.
    """

    number: int
    prompt: Array
    tokens: Array
    max_tokens: int
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class StepTokens:
    """The tokens of one step.

    numbers: of the sequences that made some, each once; [k].  tokens: [sum of counts, *token
    shape], those of one sequence side by side, in the order of `numbers`.  counts: how many each of
    them made, 1 or more; None for one each.  stopped: numbers of the sequences that have ended by
    themselves; their last token, as that which means the end, may be among `tokens`.  out_of_room:
    of those that can have no more tokens, as the generator's context is full: they end as if they
    had got all that they may have.
    """

    numbers: Sequence[int] | Array
    tokens: Any
    counts: Sequence[int] | Array | None = None
    stopped: Sequence[int] | Array = ()
    out_of_room: Sequence[int] | Array = ()


class Generator(Model):
    """The parent class of generators: a subclass declares its tensors and defines `join`, `step`
    and `leave`.

    Its options, `name`, `framework`, `load` and `unload` are those of `bp.Model`. What follows
    stands in the class body, or `__init__` sets it.

    prompt      the one input: a `bp.Tensor` whose first dimension is a `bp.Dim`, with its most
                elements. An empty prompt is refused, unless the dimension says min=0; min=4 refuses
                prompts of fewer than four
    token       what a step makes for a sequence: a `bp.Tensor` of a fixed shape, as () for one
                number or (8,) for eight codes of a sound
    max_tokens  the most tokens of a sequence. A request says how many it wants by the parameter
                "max_tokens", which is added to `parameters` unless it stands there; its default is
                this number
    parameters  further values of a request, as "temperature"
    text        a `bp.Text`, where prompt and tokens are those of a tokenizer; with it the pool
                serves /v1/completions and /v1/chat/completions
    sequences   how many sequences run at once in one worker. The pool sets it to `max_batch` before
                `load`, which may set a smaller number
    kv_tokens   how many tokens all sequences of a worker may have together, prompts among them; 0
                (default) for any number. `load` may set it. A sequence joins only when all the
                tokens that it may get are free, so that none has to be put off later

    The outputs of a request are its tokens, [n, *token shape], and "finish_reason": b"stop" where
    the generator ended it, b"length" where it got all tokens that it may have.
    """

    generates: ClassVar[bool] = True
    prompt: Tensor
    token: Tensor = Tensor("token", "int32")
    max_tokens: int = 1024
    text: Text | None = None
    sequences: int = 0
    kv_tokens: int = 0

    def join(self, sequences: Sequence[JoiningSequence]) -> Mapping[int, Exception] | None:
        """Take up sequences; their first token may be made here or in the steps that follow.

        Those with `tokens` go on behind these. May return {number: error} for sequences that it
        refuses, `bp.InvalidInput` where the caller is at fault (HTTP status 400); they have not
        joined and do not leave. An exception that is raised fails all running sequences, which run
        again, in parts, until the guilty one is alone.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define join")

    def step(self) -> StepTokens:
        """Run one iteration for the sequences that have joined, and return the tokens made.

        A sequence may make none in a step, as while its long prompt is taken in parts. Sequences
        that stopped, or that have all their tokens, are told to `leave` before the next step. An
        exception fails all running sequences, as in `join`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def leave(self, numbers: Sequence[int]) -> None:
        """Free what these sequences hold: they have ended, or their callers have gone. The numbers
        may join again, as other sequences, at once.

        After an exception of `join` there may be some among them that it had not taken up yet. An
        exception of this method ends the worker, since what it still holds is unknown; if it
        follows one of `join` or `step`, callers are told of that first one.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define leave")

    @classmethod
    def _generator_spec(
        cls,
        model: Any,
        name: str,
        lists: tuple[tuple[Tensor, ...], ...],
        between: tuple[Tensor, ...],
    ) -> ModelSpec:
        """The declaration of a generator, which has a prompt and a token instead of these lists,
        but for the parameters."""
        inputs, outputs, parameters = lists
        if inputs or outputs or between:
            raise ConfigError(
                f"generator {name!r} declares inputs, outputs or stages; prompt and token were"
                " expected"
            )
        inputs, outputs, parameters = generator_tensors(model, name, parameters)
        return ModelSpec(
            name, model.framework, inputs, outputs, parameters, generates=True, text=model.text
        )

    def warm_up_prompt(self) -> Any:
        """The prompt of the sequence that warms the generator up, [n, ...]. Default: the pad value
        of `prompt` in eight places, or its most or least if these are less or more."""
        least, most = self.prompt.min_shape[0], self.prompt.max_shape[0]
        shape = (max(least, min(8, most)), *self.prompt.max_shape[1:])
        import numpy as np  # a class body of the user's may need no numpy

        return np.full(shape, self.prompt.stored_pad, self.prompt.np_dtype)


def generator_tensors(
    model: type[Generator] | Generator, name: str, parameters: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs, outputs and parameters of a generator; ConfigError says what is wrong with its
    declaration. name: of the model, for messages. parameters: as declared."""
    cls = model if isinstance(model, type) else type(model)
    prompt, token, most = getattr(model, "prompt", None), model.token, model.max_tokens
    if not isinstance(prompt, Tensor):
        raise ConfigError(
            f"generator {name!r}: prompt is {prompt!r}; a bp.Tensor was expected, as"
            ' prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=2048),))'
        )
    if prompt.is_bytes or prompt.dynamic != (0,):
        raise ConfigError(
            f"generator {name!r}: prompt is {prompt.dtype} {prompt.describe_shape()}; numbers whose"
            " first dimension, and no other, is a bp.Dim were expected"
        )
    if prompt.default is not None:
        raise ConfigError(f"generator {name!r}: its prompt has a default; none was expected")
    if not isinstance(token, Tensor) or token.is_bytes or token.dynamic:
        raise ConfigError(
            f"generator {name!r}: token is {token!r}; a bp.Tensor of numbers of a fixed shape was"
            " expected"
        )
    if type(most) is not int or most < 1:
        raise ConfigError(
            f"generator {name!r}: max_tokens is {most!r}; a whole number of at least 1 was expected"
        )
    if model.text is not None:
        _check_text(name, model.text, prompt, token)
    for method in ("join", "step", "leave"):
        if getattr(cls, method) is getattr(Generator, method):
            raise ConfigError(f"generator class {cls.__name__} does not define {method}")
    if cls.infer is not Model.infer:
        raise ConfigError(
            f"generator class {cls.__name__} defines infer, which is for bp.Model; a generator has"
            " join, step and leave"
        )
    for parameter in parameters:
        if parameter.name == MAX_TOKENS and parameter.np_dtype.kind not in "iu":
            raise ConfigError(
                f"generator {name!r}: its parameter {MAX_TOKENS!r} is {parameter.dtype}; whole"
                " numbers were expected"
            )
    if not any(parameter.name == MAX_TOKENS for parameter in parameters):
        parameters = (*parameters, Tensor(MAX_TOKENS, "int64", default=most))
    tokens = Tensor(token.name, token.dtype, (Dim(most), *token.shape), pad=token.pad)
    return (_declared(prompt),), (tokens, Tensor(FINISH_REASON, "bytes", max_bytes=8)), parameters


def _declared(prompt: Tensor) -> Tensor:
    """The prompt with its least size: one element, unless its declaration says another number."""
    first, *others = prompt.shape
    assert isinstance(first, Dim), "checked before"
    if first.min is not None:
        return prompt
    return replace(prompt, shape=(replace(first, min=LEAST_PROMPT), *others))


def _check_text(name: str, text: object, prompt: Tensor, token: Tensor) -> None:
    """Raise ConfigError unless prompt and tokens can be those of a tokenizer."""
    if not isinstance(text, Text):
        raise ConfigError(f"generator {name!r}: text is {text!r}; a bp.Text was expected")
    for what, tensor, shape in (("prompt", prompt, prompt.shape[:1]), ("token", token, ())):
        if tensor.np_dtype.kind not in "iu" or tensor.element.is_bfloat16 or tensor.shape != shape:
            raise ConfigError(
                f"generator {name!r} has a text, but its {what} is {tensor.dtype}"
                f" {tensor.describe_shape()}; one whole number for each token was expected"
            )
