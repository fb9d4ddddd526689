"""What a server counts, in the words of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from vitkit.serving.batching import Work

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter("vitkit_requests", "Requests by route and status.", ("route", "status"), registry=own)
        self.seconds = Histogram(
            "vitkit_request_seconds", "From a request's head to its answer.", ("route",), buckets=_SECONDS, registry=own
        )
        self.images = Counter("vitkit_images", "Images by model and outcome.", ("model", "outcome"), registry=own)
        self._batches = Histogram(
            "vitkit_batch_images", "Images answered at a time.", ("model",), buckets=_IMAGES, registry=own
        )
        self._batch_seconds = Histogram(
            "vitkit_batch_seconds", "From the first image's decoding to the answer.", ("model",), buckets=_SECONDS,
            registry=own,
        )  # fmt: skip

    def observe(self, work: Work, images: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.labels(work.name).observe(images)
        self._batch_seconds.labels(work.name).observe(seconds)

    def count_refusal(self, status: int) -> None:
        """Count a request that no route has seen."""
        self.requests.labels("refused", str(status)).inc()

    def watch(self, waiting: Callable[[], int], working: Callable[[], int]) -> None:
        """Show how much there is to do, as it is when somebody asks."""
        own = self._registry
        Gauge("vitkit_images_waiting", "Images that wait for a batch.", registry=own).set_function(waiting)
        Gauge("vitkit_images_working", "Images that are being answered.", registry=own).set_function(working)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
