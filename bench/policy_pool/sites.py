"""Several pools at the same time, each with its senders on cores of its own.

What differs between them then is the policy alone: they see the same arrivals at the same time
of the same machine. Where there are not enough cores they share them all and take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from bench.policy.loads import Profile
from bench.policy_pool.models import sleeping
from bench.scaling.pool import Pool
from bench.support.children import on_cores
from bench.support.serving import Served

SLEEPER = "bench.policy_pool.models:Sleeper"
_CORES = 3  # of a site: batcher, worker and front end seldom work at once; two senders

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """A pool that is ready, and the cores it and its senders may use."""

    name: str
    served: Served
    cores: frozenset[int]


def shares_of_cores(n: int) -> list[frozenset[int]]:
    """Cores for n sites; fewer shares than that if there are not enough."""
    cores = sorted(os.sched_getaffinity(0))
    shares = min(n, len(cores) // _CORES)
    if shares < 2:
        return [frozenset(cores)]
    return [frozenset(cores[i * _CORES : (i + 1) * _CORES]) for i in range(shares)]


@contextmanager
def sites(
    flags_of: Mapping[str, Sequence[str]], profile: Profile, *flags: str
) -> Iterator[list[Site]]:
    """A pool of `Sleeper` for each name, with its flags and the common ones."""
    shares = shares_of_cores(len(flags_of))
    env = sleeping(profile.base_ms, profile.row_ms)
    with ExitStack() as stack:
        pools = []
        for i, (name, own) in enumerate(flags_of.items()):
            cores = shares[i % len(shares)]
            with on_cores(cores):
                pools.append((name, stack.enter_context(Pool(SLEEPER, (*own, *flags), env)), cores))
        for _, pool, _ in pools:
            pool.await_ready()
        yield [Site(name, pool.served, cores) for name, pool, cores in pools]
        for _, pool, _ in pools:
            pool.dismiss()


def everywhere(places: Sequence[Site], do: Callable[[Site], T]) -> dict[str, T]:
    """Results of `do` at every site, by name; sites that share cores run one after another."""
    locks = {site.cores: threading.Lock() for site in places}

    def at(site: Site) -> T:
        with locks[site.cores], on_cores(site.cores):
            return do(site)

    with ThreadPoolExecutor(len(places)) as threads:
        return dict(zip((site.name for site in places), threads.map(at, places), strict=True))
