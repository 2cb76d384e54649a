"""Metrics for Prometheus' textfile collector, as text.

Who has the text puts it in place with `rmqctl.files.durable.replace_file`, so that a scrape sees
the old file or the new one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Metric(NamedTuple):
    """One metric family; ``kind`` is ``gauge``, ``counter`` or ``untyped``."""

    name: str
    help: str
    kind: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def exposition(metrics: Iterable[Metric]) -> str:
    """The text exposition format. Raises ValueError for a name the format does not allow."""
    lines = []
    for metric in metrics:
        if not _METRIC_NAME.fullmatch(metric.name):
            raise ValueError(f"not a metric name: {metric.name!r}")
        lines.append(f"# HELP {metric.name} {_escape_help(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [
            f"{metric.name}{_labels(labels)} {_value(value)}" for labels, value in metric.samples
        ]
    return "\n".join(lines) + "\n" if lines else ""


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _labels(labels: Mapping[str, str]) -> str:
    parts = []
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"not a label name: {name!r}")
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        parts.append(f'{name}="{escaped}"')
    return "{" + ",".join(parts) + "}" if parts else ""


def _value(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
