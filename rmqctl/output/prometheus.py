"""Metrics in Prometheus's format: for an HTTP response, or for a file of node_exporter's textfile
collector, which the caller writes with `rmqctl.files.durable.replace_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A metric; ``samples`` are (labels, value). A name that ends with ``_total`` is a counter, any
    other a gauge.
    """

    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def families(metrics: Iterable[Metric]) -> Iterator[Any]:
    """Yield the metrics as objects of the client library; labels that are not UTF-8 get escapes."""
    from prometheus_client.core import Metric as Family

    for metric in metrics:
        name, total, _ = metric.name.partition("_total")
        family = Family(name, metric.help, "counter" if total else "gauge")
        for labels, value in metric.samples:
            family.add_sample(metric.name, {
                name: text.encode("utf-8", "backslashreplace").decode()
                for name, text in labels.items()}, value)
        if family.samples:
            yield family


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Return the text exposition format."""
    from prometheus_client import generate_latest

    class _Collected:
        def collect(self) -> Iterator[Any]:
            return families(metrics)

    return bytes(generate_latest(_Collected()))
