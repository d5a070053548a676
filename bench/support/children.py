"""Processes that are told one JSON line at a time, so that they start once and measure often.

A child module ends with `obey(answer)`; whoever needs it makes a `Child`, and ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_LEAD_NS = 150_000_000  # from the word to the common start
_END_S = 10.0


class Child:
    """One process. env: what its environment has more than ours."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._module = module
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, do: str, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **message}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for its answer. RuntimeError: it failed, or it is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended with {self.process.wait(_END_S)}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(f"{self._module}: {answer['failed']}")
        return answer

    def ask(self, do: str, **message: Any) -> dict[str, Any]:
        self.tell(do, **message)
        return self.hear()

    def dismiss(self) -> None:
        """Nobody will tell it anything any more: it ends once it has answered."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it may be gone already
            self.process.stdin.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def together(
    children: Sequence[Child],
    do: str,
    seconds: float,
    meanwhile: Callable[[int], Any] = lambda start_ns: None,
    **message: Any,
) -> list[dict[str, Any]]:
    """All of them do it for so long, from the same moment (CLOCK_MONOTONIC) on."""
    start_ns = time.monotonic_ns() + _LEAD_NS
    for child in children:
        child.tell(do, start_ns=start_ns, seconds=seconds, **message)
    meanwhile(start_ns)
    return [child.hear() for child in children]


@contextlib.contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Keeps processes that this thread starts meanwhile to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def wait_until(start_ns: int) -> None:
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)


def obey(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A child's loop, until nobody tells it anything any more. Its stdout is for answers only;
    whatever else prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except BaseException:
            said = {"failed": traceback.format_exc()}
        out.write(json.dumps(said) + "\n")
        out.flush()
