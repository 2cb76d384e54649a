"""The environment of a predicted startup: the clock and the disk usage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.errors import UsageError
from rmqctl.parse_values import now_ms
from rmqctl.phrases import Phrase
from rmqctl.store.store import Store

IGNORE = "ignore"


class StartEnvironment(NamedTuple):
    """Clock and disk at startup.

    ``now``: time of the start (ms).
    ``disk_used``: assumed share of the disk in use, 0 to 1 (None: the actual share).
    ``no_disk``: reason why the disk is not judged, or "".
    """

    now: int
    disk_used: float | None = None
    no_disk: str = ""


clock: Callable[[Store], int] = lambda _store: now_ms()  # noqa: E731 - tests replace it
"""Function that returns the time (ms) at which a broker would start on a store."""


def around(store: Store, disk_used: float | str | None = None) -> StartEnvironment:
    """Return the clock and the disk of this machine. ``disk_used``: a ratio (0 to 1) that replaces
    the actual disk usage, or `IGNORE`.
    """
    if disk_used == IGNORE:
        return StartEnvironment(clock(store),
                                no_disk=Phrase("disk not checked (--disk-used ignore)"))
    if disk_used is not None:
        return StartEnvironment(clock(store), float(disk_used))
    if _read_only(store.root):
        return StartEnvironment(clock(store), no_disk=Phrase("read-only copy"))
    return StartEnvironment(clock(store))


def around_in_use(store: Store, disk_used: float | str | None = None) -> StartEnvironment:
    """Return the same as `around`, but judge the disk only if a broker uses the store or
    ``disk_used`` was passed.
    """
    surroundings = around(store, disk_used)
    if disk_used is None and not surroundings.no_disk and not _in_use(store):
        return surroundings._replace(no_disk=Phrase("no sign that a broker uses this store"))
    return surroundings


def parse_disk_used(text: str) -> float | str:
    """Parse ``0.86``, ``86%`` or ``ignore``.
    Raises: UsageError.
    """
    if text.strip().lower() == IGNORE:
        return IGNORE
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    ratio = number / 100 if text.strip().endswith("%") else number
    if not 0 <= ratio <= 1:
        raise UsageError(f"expected a ratio from 0 to 1, a percentage or {IGNORE!r}, got {text!r}")
    return ratio


def _read_only(root: str) -> bool:
    try:
        return bool(vfs.statvfs(root).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _in_use(store: Store) -> bool:
    """Return whether a broker uses, or has used, the store on this machine. A lock file, an abort
    file or a broker.conf shows such use.
    """
    return vfs.access(store.root, os.W_OK) and bool(
        store.sizes.conf.path or store.has_abort or store.lock.held
        or vfs.exists(store.path("lock")))
