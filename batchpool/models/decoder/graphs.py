"""Calls of the model as CUDA graphs, one for each shape, captured when the model is loaded.

A decode step of a small model is some hundred kernels that take the device less time than the CPU
needs to start them. A graph is started at once. It works on the memory that it was captured on, so
the calls read and write tensors with fixed addresses.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

import torch

Call: TypeAlias = Callable[[], None]
# Records the device work that a call starts; the returned call starts it again.
Capture: TypeAlias = Callable[[Call], Call]

_WARM_UPS = 2  # libraries allocate and choose kernels in the first calls


class CallGraphs:
    """The captured calls by their shape. A shape that was not captured runs as it is."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, Call] = {}

    def capture(self, calls: Mapping[Hashable, Call], capture: Capture) -> None:
        """Capture calls, in the order of the mapping: the largest first, whose memory the others
        then use."""
        for shape, call in calls.items():
            self._captured[shape] = capture(call)

    def run(self, shape: Hashable, call: Call) -> None:
        """Replay the graph of a shape, or call."""
        self._captured.get(shape, call)()


def capture_on(device: torch.device) -> Capture:
    """Capture on a CUDA device, all into one pool of memory: the calls run one after another."""
    pool = torch.cuda.graph_pool_handle()

    def capture(call: Call) -> Call:
        with torch.cuda.device(device):
            return captured(call)

    def captured(call: Call) -> Call:
        side = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                call()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Thread-local: another thread of the worker may use the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            call()
        replay: Call = graph.replay
        return replay

    return capture
