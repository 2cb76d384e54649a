"""A store directory, opened read-only: files, logical streams, look-ups, lock probe.

No class of this package has a method that writes; `store.Store.open` is the way in.
"""

from rmqctl.store.store import Sizes, Store

__all__ = ["Sizes", "Store"]
