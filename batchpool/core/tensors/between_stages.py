"""The check of the tensors that one stage of a model makes for the next one, and of what else that
stage reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batchpool.core.errors import ConfigError


class DeclaredTensor(Protocol):
    """The part of a `Tensor` that is checked."""

    @property
    def name(self) -> str: ...
    @property
    def default(self) -> Any: ...
    @property
    def labels(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class HandOver:
    """The list of a declaration that names the tensors between one stage and the next.

    kind: the list of the declaration, as "features". noun: one of its tensors. maker, reader: the
    methods of the model that write and read them.
    """

    kind: str
    noun: str
    maker: str
    reader: str

    def check(
        self,
        model: str,
        made: Sequence[DeclaredTensor],
        kept: Sequence[str],
        earlier: Mapping[str, Sequence[str]],
        parameters: Sequence[str],
    ) -> None:
        """Raise ConfigError for tensors and names that cannot work.

        made: the tensors of the list. kept: the names in it. earlier: what `reader` may read
        besides: names by what they are, {"input": [...], "feature": [...]}.
        """
        who, what = f"model {model!r}", " or ".join(earlier)
        known = [name for names in earlier.values() for name in names]
        for i, tensor in enumerate(made):
            if tensor.name in (*known, *parameters):
                others = ", ".join(earlier)
                raise ConfigError(
                    f"{who}: {self.noun} {tensor.name!r} has the name of an {others} or parameter;"
                    f" give it another one, or write {tensor.name!r} instead of the tensor if"
                    f" {self.reader} is to read that {what} as it came"
                )
            if tensor.name in (other.name for other in made[:i]):
                raise ConfigError(f"{who}: {tensor.name!r} stands twice in its {self.kind}")
            if tensor.default is not None or tensor.labels:
                raise ConfigError(
                    f"{who}: {self.noun} {tensor.name!r} has a default or labels, which are for"
                    f" callers; no caller sees a {self.noun}"
                )
        for name in kept:
            if name not in known:
                raise ConfigError(
                    f"{who}: {name!r} among its {self.kind} is no {what}; expected a bp.Tensor that"
                    f" {self.maker} makes, or one of {', '.join(map(repr, known))}"
                )
            if kept.count(name) > 1:
                raise ConfigError(f"{who}: {name!r} stands twice in its {self.kind}")
        if kept and not made:
            names = " and ".join(f"{each}s" for each in earlier)
            raise ConfigError(
                f"{who}: its {self.kind} name {names} only; expected a bp.Tensor that"
                f" {self.maker} makes"
            )


FEATURES = HandOver("features", "feature", "preprocess", "infer")
PREDICTIONS = HandOver("predictions", "prediction", "infer", "postprocess")
