"""Counts of a server, in Prometheus' text format and as the report of its end.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sdort.console import document
from sdort.generation.requests.record import StageSeconds

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)


@document("serve", 1)
@dataclass(frozen=True)
class ServeReport:
    """The counts of a server that has ended, printed with ``sdort serve --json``."""

    requests: int
    """Requests for images that were taken."""
    images: int
    """Images that were drawn."""
    refused: int
    """Requests for images that were refused, as wrong or because the queue was full."""
    failed: int
    """Requests of which nothing came, or not in time."""
    cancelled: int
    """Requests that were cancelled, or whose client went."""
    seconds: float
    """Seconds from the first to the last, loading included."""


class Metrics:
    """The counts of one server; any thread may count.

    Args:
        batches: numbers of images that are drawn together.
        waiting: gives the length of the queue.
        sound: gives the number of engines that draw.
        memory: gives the bytes of the GPU that are in use; None where nothing tells.
    """

    def __init__(
        self,
        batches: Sequence[int],
        waiting: Callable[[], int],
        sound: Callable[[], int],
        memory: Callable[[], int | None] | None,
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._begun = time.perf_counter()
        self._requests = Counter("sdort_requests", "Requests by their end.", ["end"], registry=registry)
        self._refusals = Counter("sdort_refusals", "Refused requests by HTTP's status.", ["status"], registry=registry)
        self._images = Counter("sdort_images", "Images that were drawn.", ["model"], registry=registry)
        self._batch = Histogram(
            "sdort_batch_images", "Images that were drawn together.", buckets=sorted(batches), registry=registry
        )
        self._stages = Histogram(
            "sdort_stage_seconds", "Seconds of a batch.", ["stage"], buckets=_SECONDS, registry=registry
        )
        self._waits = Histogram(
            "sdort_request_seconds", "Seconds from a request to its end.", buckets=_SECONDS, registry=registry
        )
        Gauge("sdort_queue_length", "Requests that wait.", registry=registry).set_function(waiting)
        workers = Gauge("sdort_workers", "Workers that draw; 0 where /ready is not 200.", registry=registry)
        workers.set_function(sound)
        self._sound = sound
        if memory is not None:
            read = memory
            used = Gauge("sdort_gpu_memory_bytes", "Bytes of the GPU's memory in use.", registry=registry)
            used.set_function(lambda: read() or 0)
        self.seconds_each = 1.0
        """Of late, from one image to the next."""
        self._counts = dict.fromkeys(("taken", "done", "failed", "cancelled", "refused", "images"), 0)

    def text(self) -> bytes:
        """All counts, in Prometheus' format."""
        return generate_latest(self._registry)

    def taken(self) -> None:
        """A request was taken."""
        self._counts["taken"] += 1

    def refused(self, status: int) -> None:
        """A request was refused."""
        self._counts["refused"] += 1
        self._refusals.labels(status).inc()

    def ended(self, end: str, seconds: float) -> None:
        """A request ended: ``done``, ``failed`` or ``cancelled``."""
        self._counts[end] += 1
        self._requests.labels(end).inc()
        self._waits.observe(seconds)

    def drawn(self, model: str, count: int, seconds: StageSeconds) -> None:
        """A batch was drawn."""
        self._counts["images"] += count
        self._images.labels(model).inc(count)
        self._batch.observe(count)
        spent = {stage: getattr(seconds, stage) for stage in ("encode", "encode_image", "denoise", "decode")}
        for stage, each in spent.items():
            self._stages.labels(stage).observe(each)
        self.seconds_each += (sum(spent.values()) / max(count, 1) / max(self._sound(), 1) - self.seconds_each) / 4

    @property
    def report(self) -> ServeReport:
        """The counts until now."""
        counts, seconds = self._counts, round(time.perf_counter() - self._begun, 3)
        return ServeReport(
            counts["taken"], counts["images"], counts["refused"], counts["failed"], counts["cancelled"], seconds
        )
