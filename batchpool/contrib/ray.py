"""A deployment of Ray Serve whose replicas are clients of a pool on their machine.

    from batchpool.contrib.ray import PoolDeployment

    app = PoolDeployment.options(ray_actor_options={"num_gpus": 4}).bind(
        "minilm", serve=["--model", "batchpool.examples.minilm:MiniLM"]
    )

The pool batches, so the replica has no `@serve.batch`. Without code of one's own:

    serve run batchpool.contrib.ray:app model=minilm socket=/run/batchpool/pool.sock
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from batchpool.contrib.node_pool import node_pool
from batchpool.contrib.pool_calls import PoolCalls
from batchpool.core.errors import ConfigError

try:
    import ray
    from ray import serve as ray_serve
except ImportError as exc:
    raise ImportError(
        "batchpool.contrib.ray needs Ray Serve, which is not installed here:"
        " pip install 'batchpool[ray]'"
    ) from exc

__all__ = ["PoolDeployment", "PoolReplica", "app"]

_MOST_CALLS = 1000
_ARGUMENTS = ("model", "socket", "serve", "patience_s")


class PoolReplica(PoolCalls):
    """One replica: attaches to the pool of its node, or starts one with the GPUs it was given.

    model      the model of its calls; "" for the only one of the pool
    socket     of the pool that runs on the node; None for the socket of `batchpool serve` there
    serve      options of `batchpool serve` for a pool of its own, which ends with the replica. It
               sees the GPUs of the replica's num_gpus, and none where it was given none
    patience_s how long a pool of the node is waited for

    ConfigError for a model that the pool does not have, and where both socket and serve are given;
    StartError where no pool gets ready.
    """

    def __init__(
        self,
        model: str = "",
        *,
        socket: str | None = None,
        serve: Sequence[str] = (),
        patience_s: float = 60.0,
    ) -> None:
        with ExitStack() as undo:
            path = undo.enter_context(node_pool(socket, list(serve), _given_gpus(), patience_s))
            super().__init__(path, model)
            self._pool = undo.pop_all()

    def __del__(self) -> None:
        # Serve calls it when the replica has answered its last call.
        if hasattr(self, "_pool"):  # there is none where the constructor raised
            self._pool.close()


def _given_gpus() -> list[str]:
    found = ray.get_runtime_context().get_accelerator_ids()
    return [str(number) for number in found.get("GPU", ())]


PoolDeployment = ray_serve.deployment(max_ongoing_requests=_MOST_CALLS)(PoolReplica)
"""The deployment: up to 1,000 calls at the same time in a replica. `options` changes that, too."""


def app(arguments: Mapping[str, str]) -> Any:
    """The application of `serve run batchpool.contrib.ray:app NAME=VALUE ...`.

    The names are the arguments of PoolReplica; serve is one text, as in a shell. ConfigError for
    another name, and for a patience_s that is no number.
    """
    for name in arguments:
        if name not in _ARGUMENTS:
            raise ConfigError(
                f"unknown argument {name!r} of batchpool.contrib.ray:app; known:"
                f" {', '.join(_ARGUMENTS)}"
            )
    patience = arguments.get("patience_s", "60")
    try:
        patience_s = float(patience)
    except ValueError:
        raise ConfigError(f"patience_s={patience}: a number of seconds was expected") from None
    return PoolDeployment.bind(
        arguments.get("model", ""),
        socket=arguments.get("socket"),
        serve=shlex.split(arguments.get("serve", "")),
        patience_s=patience_s,
    )
