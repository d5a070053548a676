"""batchpool: requests ride together on the GPUs of one box."""

from batchpool.client.aio import AsyncClient
from batchpool.client.sync import Client
from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    ModelError,
    NotFound,
    NotReady,
    Overloaded,
    PoolError,
    PoolStopped,
    TooLarge,
    UnsupportedMediaType,
    WorkerLost,
)
from batchpool.core.tensors import Dim, Tensor
from batchpool.inprocess import InferenceBatcher, batch_inference
from batchpool.model import Batch, Model

__all__ = [
    "AsyncClient",
    "Batch",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Dim",
    "Draining",
    "InferenceBatcher",
    "InternalError",
    "InvalidRequest",
    "MethodNotAllowed",
    "Model",
    "ModelError",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PoolError",
    "PoolStopped",
    "Tensor",
    "TooLarge",
    "UnsupportedMediaType",
    "WorkerLost",
    "batch_inference",
]
