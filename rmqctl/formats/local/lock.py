"""The ``lock`` file: four letters (spec: checkpoint-and-small-files.md §3).

While a broker runs, the file's first byte is locked exclusively by the operating system.
"""

from __future__ import annotations

from rmqctl.errors import FormatError

CONTENT = b"lock"
LOCKED_RANGE = (0, 1)
"""Start and length of the byte range that a broker locks."""


def parse(data: bytes) -> str:
    """Return the text of a lock file: ``lock``, or "" for a store that was opened but never
    started.
    """
    if data not in (CONTENT, b""):
        position = next((i for i, (a, b) in enumerate(zip(data, CONTENT, strict=False)) if a != b),
                        min(len(data), len(CONTENT)))
        raise FormatError("not the text of a lock file", offset=position, path="text")
    return data.decode("ascii")


def build(text: str = "lock") -> bytes:
    """Return the content of a lock file with this text."""
    raw = text.encode("ascii", "replace")
    parse(raw)
    return raw
