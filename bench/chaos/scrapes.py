"""Scrapes of /metrics while processes die: each must be whole, true and no step back.

A connection of its own for each, so that the kernel spreads them over the front ends. One that
breaks, or gets no answer in time, was to a front end that was struck: it is counted apart and made
again at once.
"""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.support.machine import percentile

_PATIENCE_S = 5.0
_GHOST_S = 2.0  # so long after a process's end nobody may tell of it any more
_COUNTED = ("counter", "histogram")

Series = tuple[str, tuple[tuple[str, str], ...]]


class Scrapes(threading.Thread):
    """Scrapes a pool until `end`. faults: what no scrape may show."""

    def __init__(self, port: int, per_s: float) -> None:
        super().__init__()
        self._port = port
        self._period_s = 1 / per_s
        self._over = threading.Event()
        self._counts: dict[Series, float] = {}
        self._dead_since_s: dict[int, float] = {}
        self._pids: set[int] = set()
        self._series: list[int] = []
        self._took_s: list[float] = []
        self._broken = 0
        self.faults: list[str] = []

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            begun_s = time.monotonic()
            try:
                status, text = self._scrape()
            except (OSError, http.client.HTTPException):
                self._broken += 1
                continue
            self._took_s.append(time.monotonic() - begun_s)
            if status != 200:
                self.faults.append(f"a scrape was answered {status}: {text[:200]}")
            else:
                self._look(text, begun_s)
            due_s = max(due_s + self._period_s, begun_s)

    def end(self) -> None:
        self._over.set()
        self.join()

    def rows(self) -> dict[str, Any]:
        """Of the table of bench.chaos."""
        took = self._took_s or [0.0]
        return {
            "scrapes of /metrics": len(self._took_s),
            "scrapes whose connection broke, made again": self._broken,
            "scrapes p50, p99, most, ms": [
                round(1000 * percentile(took, share), 1) for share in (0.5, 0.99, 1.0)
            ],
            "series of the first and the last scrape": [self._series[0], self._series[-1]],
            "counters and buckets that were compared": len(self._counts),
            "processes that were told of": len(self._pids),
        }

    def _scrape(self) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _look(self, text: str, begun_s: float) -> None:
        try:
            families = list(text_string_to_metric_families(text))
        except ValueError as exc:
            self.faults.append(f"a scrape cannot be read: {exc}")
            return
        found: dict[Series, float] = {}
        for family in families:
            for sample in family.samples:
                if family.type in _COUNTED:
                    found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
                elif family.name == "batchpool_process_pid":
                    self._look_at_process(sample.labels["process"], int(sample.value), begun_s)
        self._series.append(sum(len(family.samples) for family in families))
        for series, before in self._counts.items():
            now = found.get(series)
            if now is None or now < before:
                self.faults.append(f"{series}: {before} before, {now} now")
        self._counts |= found

    def _look_at_process(self, name: str, pid: int, begun_s: float) -> None:
        if pid == 0:
            return
        self._pids.add(pid)
        if not Path(f"/proc/{pid}").exists():
            since_s = self._dead_since_s.setdefault(pid, time.monotonic())
            if begun_s - since_s > _GHOST_S:
                self.faults.append(f"{name} is told of as pid {pid}, which ended long ago")
