"""Metrics for Prometheus' textfile collector, published atomically."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rmqctl.errors import StoreIOError

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


def write_textfile(path: str | os.PathLike[str], metrics: Iterable[Metric]) -> None:
    """Write ``metrics`` to ``path`` so that a scrape sees the old file or the new one, whole.

    Temporary file beside it, fsync, rename, fsync of the folder. The temporary name does not end
    in ``.prom``, hence the collector never reads it; it is removed when anything fails.
    Raises StoreIOError naming the path.
    """
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    temporary = os.path.join(folder, f".{os.path.basename(target)}.{os.urandom(4).hex()}.tmp")
    data = exposition(metrics).encode("utf-8", "backslashreplace")
    try:
        try:
            # 0o644: the collector runs as another user; umask may narrow it.
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
    except OSError as exc:
        raise StoreIOError.from_oserror(exc, target, "write") from exc
