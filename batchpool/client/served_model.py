"""The models of a pool and the state of a client, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchpool.client.pool_facts import ModelFacts
from batchpool.client.session import Session
from batchpool.core.tensors.spec import ModelSpec, Tensor


@dataclass(frozen=True)
class ServedModel:
    """A model of a pool: its tensors, as it declares them, and its limits.

    max_batch: most rows of one batch; a call may have any number. request_timeout_s: for a request
    that brings no limit of its own. idempotent: rows run again when their worker is lost.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    max_batch: int
    request_timeout_s: float
    idempotent: bool


def spec_of(served: ServedModel) -> ModelSpec:
    """The declaration of a served model, as far as its callers are told of it."""
    return ModelSpec(served.name, "numpy", served.inputs, served.outputs, served.parameters)


def served_models(facts: Mapping[str, ModelFacts]) -> dict[str, ServedModel]:
    """The models of a session for its caller."""
    return {
        name: ServedModel(
            name,
            model.spec.inputs,
            model.spec.outputs,
            model.spec.parameters,
            model.max_batch,
            model.request_timeout_s,
            model.idempotent,
        )
        for name, model in facts.items()
    }


def state_of(closed: bool, session: Session | None) -> str:
    """The state of a client in a word. session: the live one."""
    if closed:
        return "closed"
    return "not connected" if session is None or session.is_over() else "connected"
