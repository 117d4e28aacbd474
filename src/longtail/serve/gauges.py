"""EVENTS → NUMBERS: what Prometheus reads from /metrics, summed over the worker processes."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder through which workers add up; prometheus-client reads it at import
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.5, 1, 5, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Gauges:
    """The numbers of one service."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self._requests = Counter("longtail_requests", "Requests answered.", ("path", "status"), registry=own)
        self._seconds = Histogram(
            "longtail_request_seconds", "Time to answer.", ("path",), registry=own, buckets=SECONDS
        )
        self.texts = Counter("longtail_texts", "Texts predicted.", registry=own)
        self.batches = Histogram("longtail_batch_texts", "Texts predicted together.", registry=own, buckets=SIZES)
        self.waiting = Gauge(
            "longtail_waiting_texts", "Texts waiting for their turn.", registry=own, multiprocess_mode="livesum"
        )
        self.labels = Gauge("longtail_labels", "Labels.", ("model",), registry=own, multiprocess_mode="livemax")
        self.reloads = Counter("longtail_reloads", "Model folders opened again.", ("model", "result"), registry=own)
        self._bound: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer; `path` must be one of a few."""
        key = (path, status)
        if key not in self._bound:
            self._bound[key] = (self._requests.labels(path, status), self._seconds.labels(path))
        count, duration = self._bound[key]
        count.inc()
        duration.observe(seconds)

    def text(self) -> bytes:
        """Write all numbers for Prometheus."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)
