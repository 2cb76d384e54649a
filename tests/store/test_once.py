"""Two threads with an instance each never wait for each other, whatever needs what first."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import pytest

from rmqctl.store.log.once import cached_property
from rmqctl.store.store import Store


def both(decorator: Any) -> bool:
    """Whether two threads end, one of which computes ``a`` by ``b`` and one ``b`` by ``a``."""
    meeting = threading.Barrier(2, timeout=5)

    class Pair:
        other: Pair | None = None

        @decorator
        def a(self) -> int:
            return 1 if self.other is None else meeting.wait() + self.other.b

        @decorator
        def b(self) -> int:
            return 2 if self.other is None else meeting.wait() + self.other.a

    first, two = Pair(), Pair()
    first.other, two.other = Pair(), Pair()
    threads = [threading.Thread(target=getattr, args=args, daemon=True)
               for args in ((first, "a"), (two, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.3)
    return not any(thread.is_alive() for thread in threads)


def test_no_thread_waits_for_another():
    assert both(cached_property)
    assert isinstance(Store.__dict__["log_as_it_is"], cached_property)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python has no lock there any more")
def test_they_would_with_the_lock_of_python():
    assert not both(functools.cached_property)
