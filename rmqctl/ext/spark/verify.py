"""Verify many stores on a pool of workers: a small store in one task, a large store in ranges.

Findings and texts are the same as from `rmqctl.checks.verify.verify`: the results of ranges are
merged in log order, and the seams between them are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rmqctl.checks.verify.judged import JudgedStore
from rmqctl.checks.verify.log.ranges import split
from rmqctl.checks.verify.verdict import verdict
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.errors import RmqctlError
from rmqctl.store.log.ranges import Pool
from rmqctl.store.store import Sizes, Store

MAX_TASK = 256 << 20
"""Maximum bytes of log of a store that is verified in one task, if several stores are verified."""


def store_size(root: str, dirs: Sequence[str] = ()) -> int:
    """Return the bytes of a store's log. Raises: NotAStoreError, StoreIOError."""
    with Store.open(root, dirs) as store:
        return sum(file.size for file in store.log.files)


def total_size(roots: Sequence[str], size: Callable[[str], int]) -> int:
    """Return the total bytes of log of all stores. If several stores are given, a store that cannot
    be opened counts as 0 bytes and fails later.
    """
    total = 0
    for root in roots:
        try:
            total += size(root)
        except RmqctlError:
            if len(roots) == 1:
                raise
    return total


def planned(roots: Sequence[str], options: VerifyOptions, dirs: Sequence[str] = ()) -> list[
        dict[str, Any]]:
    """Return what would be read: a row per store with its files, bytes and ranges.
    Raises: NotAStoreError.
    """
    rows = []
    for root in roots:
        with Store.open(root, dirs) as store:
            files = [file for file in store.log.files if file.size]
            size = sum(file.size for file in files)
            if len(roots) > 1 and options.ranges is None and size <= MAX_TASK:
                count = 1
            elif options.ranges:
                count = len(split(store, options.ranges, 1))
            else:
                count = len(split(store, options.jobs * 4))
            rows.append({"store": root, "files": len(files), "bytes": size, "partitions": count})
    return rows


def verify_stores(roots: Sequence[str], pool: Pool, options: VerifyOptions, most: int,
                  dirs: Sequence[str] = (), sizes: Sizes | None = None) -> Iterator[JudgedStore]:
    """Yield the verdicts in the order of the stores, each with at most ``most`` findings listed.

    ``dirs`` are the folders of multi-path logs (relative to each root), ``sizes`` are the file
    sizes in the brokers' configuration, if the user passed them. ``options.ranges`` divides every
    store into that many ranges. A store that cannot be verified does not stop the verification of
    the others.
    """
    small = [root for root in roots if len(roots) > 1 and options.ranges is None
             and _bytes(root, dirs) <= MAX_TASK]
    judged_small = dict(pool.run(partial(_judged, options, most, dirs, sizes, None), small))
    for root in roots:
        yield judged_small[root] if root in judged_small else _judged(
            options, most, dirs, sizes, pool, root)


def _bytes(root: str, dirs: Sequence[str]) -> int:
    try:
        return store_size(root, dirs)
    except RmqctlError:
        return 0  # the verification reports it


def _judged(options: VerifyOptions, most: int, dirs: Sequence[str], sizes: Sizes | None,
            pool: Pool | None, root: str) -> JudgedStore:
    """Verify a store: in ranges on the pool, or in this thread without a pool."""
    try:
        with Store.open(root, dirs, sizes) as store:
            run = Verification(store, replace(options, jobs=1), pool=pool)
            return JudgedStore(root, verdict(run, most))
    except RmqctlError as error:
        return JudgedStore(root, None, error)
