"""A store directory, opened read-only: its files, logs, queues and lock, and look-ups of messages.

No class of this package has a method that writes. Open a store with `store.Store.open`.
"""

from rmqctl.store.store import Sizes, Store

__all__ = ["Sizes", "Store"]
