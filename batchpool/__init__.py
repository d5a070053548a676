"""batchpool: requests ride together on the GPUs of one box.

A name is imported when it is first asked for: the processes of a pool need few of them, and a
`batchpool serve` heeds its signals long before the client library would be loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchpool.client.aio import AsyncClient
    from batchpool.client.async_token_stream import AsyncTokenStream
    from batchpool.client.lent_slots import OutputViews
    from batchpool.client.served_model import ServedModel
    from batchpool.client.sync import Client
    from batchpool.client.token_stream import TokenStream
    from batchpool.core.errors import (
        Cancelled,
        DeadlineExceeded,
        Draining,
        Expired,
        Forbidden,
        IdempotencyMismatch,
        InternalError,
        InvalidInput,
        InvalidRequest,
        MethodNotAllowed,
        ModelError,
        NotFound,
        NotReady,
        NotSupported,
        Overloaded,
        PoolError,
        PoolStopped,
        RequestTimeout,
        StorageFull,
        TaskCancelled,
        TasksFull,
        TooLarge,
        Unauthorized,
        UnsupportedMediaType,
        WorkerLost,
    )
    from batchpool.core.tensors.spec import Dim, Tensor
    from batchpool.core.tensors.text import Text
    from batchpool.generator import Generator, JoiningSequence, StepTokens
    from batchpool.inprocess import InferenceBatcher, batch_inference
    from batchpool.model import Batch, Model

__all__ = [
    "AsyncClient",
    "AsyncTokenStream",
    "Batch",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Dim",
    "Draining",
    "Expired",
    "Forbidden",
    "Generator",
    "IdempotencyMismatch",
    "InferenceBatcher",
    "InternalError",
    "InvalidInput",
    "InvalidRequest",
    "JoiningSequence",
    "MethodNotAllowed",
    "Model",
    "ModelError",
    "NotFound",
    "NotReady",
    "NotSupported",
    "OutputViews",
    "Overloaded",
    "PoolError",
    "PoolStopped",
    "RequestTimeout",
    "ServedModel",
    "StepTokens",
    "StorageFull",
    "TaskCancelled",
    "TasksFull",
    "Tensor",
    "Text",
    "TokenStream",
    "TooLarge",
    "Unauthorized",
    "UnsupportedMediaType",
    "WorkerLost",
    "batch_inference",
]
_HOMES = {
    "AsyncClient": "client.aio",
    "AsyncTokenStream": "client.async_token_stream",
    "Client": "client.sync",
    "OutputViews": "client.lent_slots",
    "ServedModel": "client.served_model",
    "TokenStream": "client.token_stream",
    "Batch": "model",
    "Model": "model",
    "Dim": "core.tensors.spec",
    "Tensor": "core.tensors.spec",
    "Text": "core.tensors.text",
    "Generator": "generator",
    "JoiningSequence": "generator",
    "StepTokens": "generator",
    "InferenceBatcher": "inprocess",
    "batch_inference": "inprocess",
}  # of all others: core.errors


if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'core.errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
