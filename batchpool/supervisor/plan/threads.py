"""Threads with which a worker computes on the CPU: how many, and how they wait for one another.

The cores that the pool may use are divided among the workers that compute there. What the operator
says goes before: cpu_threads of the model, else OMP_NUM_THREADS.

Threads that meet at the end of each step of a model spin there by default, for milliseconds: no
harm on idle cores, but batcher, front ends and other workers wait for those. OMP_WAIT_POLICY makes
them sleep at once; GNU's OpenMP, which torch brings, and Intel's and LLVM's obey it. No core is
set aside for the other processes: a thread that sleeps while it waits takes no CPU time from them
(bench/cpu_threads.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NUMBER, WAIT_POLICY, PASSIVE = "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PASSIVE"
# Any of these says how threads wait: the second is GNU's own word for it, the third Intel's.
_WAITING = (WAIT_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def threads_per_worker(cores: int, cpu_workers: int) -> int:
    """Compute threads for each of `cpu_workers` processes, together about as many as cores."""
    return max(1, cores // max(1, cpu_workers))


@dataclass(frozen=True)
class WorkerThreads:
    """The threads of one worker. fixed: the configuration says the number. on_cpu: the model runs
    there, so that threads that wait are to sleep."""

    number: int
    fixed: bool = False
    on_cpu: bool = True

    def settings(self, env: Mapping[str, str]) -> dict[str, str]:
        """Environment variables that make the worker's libraries use so many threads.

        Every OpenMP and BLAS library reads OMP_NUM_THREADS unless a variable of its own is set.
        Variables that `env` has already win, but for a number that the configuration says.
        """
        settings = {} if env.get(NUMBER) and not self.fixed else {NUMBER: str(self.number)}
        if self.on_cpu and not _said_of_waiting(env):
            settings[WAIT_POLICY] = PASSIVE
        return settings

    def number_in(self, env: Mapping[str, str]) -> str:
        """The number that holds: this one, or what `env` says."""
        return self.settings(env).get(NUMBER) or env[NUMBER]

    def text(self, env: Mapping[str, str]) -> str:
        """Number and waiting in words: "2 a worker; while they wait they sleep"."""
        number = self.number_in(env)
        by = "cpu_threads" if self.fixed else NUMBER if env.get(NUMBER) else ""
        text = f"{number} a worker" + (f" ({by})" if by else "")
        if not self.on_cpu:
            return text
        return f"{text}; {_said_of_waiting(env) or 'while they wait they sleep'}"


def _said_of_waiting(env: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={env[name]}" for name in _WAITING if env.get(name))
