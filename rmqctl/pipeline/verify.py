"""verify of many stores on a pool: small ones whole, one task each, large ones in ranges.

What is found and said is `rmqctl.checks.verify.verify`'s, whoever does the work: ranges give the
same values, which are merged in log order with their seams checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rmqctl.checks.verify.verdict import Verdict, verdict
from rmqctl.checks.verify.verify import Coverage, Verification, VerifyOptions
from rmqctl.errors import RmqctlError
from rmqctl.store.log.ranges import Pool
from rmqctl.store.store import Store

WHOLE = 256 << 20
"""Bytes of log up to which a store is one task, where there are several stores."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What there is to do for a store."""

    root: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a store, or why there is none."""

    root: str
    verdict: Verdict[Coverage] | None
    error: RmqctlError | None = None


def store_size(root: str, dirs: Sequence[str] = ()) -> StoreSize:
    """The log files of a store and their bytes. NotAStoreError, StoreIOError."""
    with Store.open(root, dirs) as store:
        files = [one for one in store.log.files if one.size]
        return StoreSize(root, len(files), sum(one.size for one in files))


def verify_stores(roots: Sequence[str], pool: Pool, options: VerifyOptions, most: int,
                  dirs: Sequence[str] = ()) -> Iterator[Judged]:
    """The verdicts in the order of the stores, each with at most ``most`` findings listed.

    ``dirs`` are the folders of multi-path logs (relative to each root). ``options.ranges`` cuts
    every store into that many ranges. A store that cannot be judged does not stop the others.
    """
    small = [root for root in roots if len(roots) > 1 and options.ranges is None
             and _bytes(root, dirs) <= WHOLE]
    whole = dict(pool.run(partial(_judged, options, most, dirs, None), small))
    for root in roots:
        yield whole[root] if root in whole else _judged(options, most, dirs, pool, root)


def _bytes(root: str, dirs: Sequence[str]) -> int:
    try:
        return store_size(root, dirs).bytes
    except RmqctlError:
        return 0  # said by whoever verifies it


def _judged(options: VerifyOptions, most: int, dirs: Sequence[str], pool: Pool | None,
            root: str) -> Judged:
    """One store: with a pool in ranges, else here and now."""
    try:
        with Store.open(root, dirs) as store:
            run = Verification(store, replace(options, jobs=1), pool=pool)
            return Judged(root, verdict(run, most))
    except RmqctlError as error:
        return Judged(root, None, error)
