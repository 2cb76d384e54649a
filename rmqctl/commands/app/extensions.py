"""Optional extensions, and whether they are installed."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec


def has(name: str) -> bool:
    """Return whether the extension ``rmqctl.ext.NAME`` is installed."""
    with suppress(ModuleNotFoundError):  # the folder of all extensions
        return find_spec(f"rmqctl.ext.{name}") is not None
    return False
