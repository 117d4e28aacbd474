"""EVENTS → PROMETHEUS METRICS: what /metrics returns, summed over the worker processes."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder that the workers share; prometheus-client reads it at import
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.5, 1, 5, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Gauges:
    """The Prometheus metrics of one service."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter("longtail_requests", "Requests answered.", ("path", "status"), registry=registry)
        self._seconds = Histogram(
            "longtail_request_seconds", "Time to answer.", ("path",), registry=registry, buckets=SECONDS
        )
        self.texts = Counter("longtail_texts", "Texts predicted.", registry=registry)
        self.batches = Histogram("longtail_batch_texts", "Texts predicted together.", registry=registry, buckets=SIZES)
        self.waiting = Gauge(
            "longtail_waiting_texts", "Texts waiting for their turn.", registry=registry, multiprocess_mode="livesum"
        )
        self.labels = Gauge("longtail_labels", "Labels.", ("model",), registry=registry, multiprocess_mode="livemax")
        self.reloads = Counter(
            "longtail_reloads", "Model folders opened again.", ("model", "result"), registry=registry
        )
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Record an answered request; `path` must be one of a few values."""
        key = (path, status)
        if key not in self._children:
            self._children[key] = (self._requests.labels(path, status), self._seconds.labels(path))
        requests, duration = self._children[key]
        requests.inc()
        duration.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged)
