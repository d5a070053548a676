"""GET /metrics: the counters of all processes in the text formats of Prometheus.

Every front end adds up the same shared words, so each gives the whole pool's metrics. It runs in
a thread for scrapes alone, never on the loop, and takes a few milliseconds.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from batchpool.control.task_messages import TaskStatus
from batchpool.core.compiled import CODE
from batchpool.core.metrics import table
from batchpool.core.metrics.table import COUNTER, HISTOGRAM, METRICS, metric_of
from batchpool.core.metrics.totals import Totals
from batchpool.frontend.http.response import HttpResponse, ok_response
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.task_metrics import Series, task_series
from batchpool.shm.stats.counters import Counters

_OPENMETRICS = b"application/openmetrics-text"
_openmetrics_text: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest


class Scrape:
    """Makes the responses of /metrics. version: of batchpool."""

    def __init__(self, counters: Counters, gpus: Gpus, version: str) -> None:
        self._counters = counters
        self._gpus = gpus
        self._build = (version, platform.python_version(), CODE)

    def __call__(self, accept: bytes = b"", tasks: TaskStatus | None = None) -> HttpResponse:
        """The response with the present counts. accept: the caller's Accept header. tasks: the
        counts of the task process."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(self._families(tasks)))
        if _OPENMETRICS in accept.lower():
            body = _openmetrics_text(registry)
            kind = openmetrics.CONTENT_TYPE_LATEST
        else:
            body, kind = generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
        fields = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        return ok_response(fields, body)

    def _families(self, tasks: TaskStatus | None) -> Iterator[Metric]:
        yield from families(self._counters.totals())
        yield _numbers(metric_of("build_info"), [(self._build, 1)])
        devices = self._gpus.look()
        for name in ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_utilization_ratio"):
            values = [((d.index, d.name), d.values[name]) for d in devices if name in d.values]
            if values:
                yield _numbers(metric_of(name), values)
        if tasks is not None:
            for metric, series in task_series(tasks):
                if (family := _family(metric, series)) is not None:
                    yield family


class _Collected(Collector):
    """Families that were made before the registry asks for them."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def families(totals: Totals) -> Iterator[Metric]:
    """The metrics that are counted in shared words, in the table's order, without empty ones."""
    for metric in METRICS:
        if (family := _family(metric, totals.series(metric))) is not None:
            yield family


def _family(metric: table.Metric, found: Iterable[Series]) -> Metric | None:
    """One metric; None where there is nothing of it."""
    if metric.kind == HISTOGRAM:
        family = _histograms(metric, found)
    else:
        # Most label sets cannot occur for requests without a model: their zeros are left out.
        series = [
            (labels, words[0] / metric.per_unit if metric.per_unit != 1 else words[0])
            for labels, words in found
            if words[0] or labels[:1] != ("",)
        ]
        family = _numbers(metric, series)
    return family if family.samples else None


def _numbers(metric: table.Metric, series: Iterable[tuple[Sequence[str], float]]) -> Metric:
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.label_names)
    for labels, value in series:
        family.add_metric(labels, value)
    return family


def _histograms(metric: table.Metric, found: Iterable[Series]) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
    bounds = [f"{bound / metric.per_unit:g}" for bound in metric.bounds]
    for labels, words in found:
        if labels[:1] != ("",):
            counts = accumulate(words[:-1])
            buckets = list(zip((*bounds, "+Inf"), counts, strict=True))
            family.add_metric(labels, buckets, words[-1] / metric.per_unit)
    return family
