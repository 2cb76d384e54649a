"""Verify many stores on a pool of workers: a small store in one task, a large store in ranges.

Findings and texts are the same as those of `rmqctl.checks.verify.verify`. The results of ranges are
merged in log order, and the boundaries between the ranges are checked.
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
"""If several stores are verified, each store whose log has at most this many bytes is verified in a
single task.
"""


def store_size(root: str, dirs: Sequence[str] = ()) -> int:
    """Return the size of a store's log in bytes. Raises: NotAStoreError, StoreIOError."""
    with Store.open(root, dirs) as store:
        return sum(file.size for file in store.log.files)


def total_size(roots: Sequence[str], size: Callable[[str], int]) -> int:
    """Return the total size of the logs of all stores in bytes.

    If several stores are given, a store that cannot be opened counts as 0 bytes. Its error is
    reported later.
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
    """Return what would be read: for each store, the number of files, bytes and ranges.
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
    """Yield the verdicts in the order of the stores, each with at most ``most`` findings.

    If a store cannot be verified, the other stores are verified nevertheless.

    * ``options.ranges``: number of ranges into which every store is divided
    * ``dirs``: folders of multi-path logs (relative to each root)
    * ``sizes``: file sizes in the brokers' configuration, if the user passed them
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
    """Verify a store in ranges on the pool; without a pool, in this thread."""
    try:
        with Store.open(root, dirs, sizes) as store:
            run = Verification(store, replace(options, jobs=1), pool=pool)
            return JudgedStore(root, verdict(run, most))
    except RmqctlError as error:
        return JudgedStore(root, None, error)
