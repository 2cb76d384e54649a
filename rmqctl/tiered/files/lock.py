"""Who may write to a tier: nobody while a broker runs over its home, and one rmqctl at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rmqctl.files.lock import StoreLock
from rmqctl.tiered.files.reader import is_url


@contextmanager
def held(root: str, home: str | None) -> Iterator[None]:
    """Holds the broker's lock in ``home`` (its local root) and a lock of ours in the tier root.

    StoreHeldError, before anything is changed. A tier behind a URL has only the lock of its home.
    """
    places = [] if home is None else [home]
    if not is_url(root):
        places.append(root)
    with ExitStack() as stack:
        for place in dict.fromkeys(os.path.realpath(one) for one in places):
            lock = StoreLock(place)
            lock.acquire()
            stack.callback(lock.release)
        yield
