"""Metrics in the Prometheus text format, for an HTTP response or a file for node_exporter's
textfile collector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A metric: a counter if its name ends with ``_total``, else a gauge. ``samples``: pairs of
    labels and value.
    """

    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def families(metrics: Iterable[Metric]) -> Iterator[Any]:
    """Yield the metrics as objects of the client library. In labels, characters that UTF-8 cannot
    encode are escaped.
    """
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
    """Return the metrics in the text exposition format."""
    from prometheus_client import generate_latest

    class _Collected:
        def collect(self) -> Iterator[Any]:
            return families(metrics)

    return bytes(generate_latest(_Collected()))
