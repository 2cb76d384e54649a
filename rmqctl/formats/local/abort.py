"""The ``abort`` file, which exists while a broker runs and after an unclean stop.

It is empty in 4.x, and contains the process id as text in 5.x. Spec: checkpoint-and-small-files.md
§2.
"""

from __future__ import annotations

from rmqctl.errors import FormatError

MAX_DIGITS = 19


def parse(data: bytes) -> int | None:
    """Return the process id in the file; None for an empty file.

    Raises: FormatError for any other content.
    """
    if not data:
        return None
    text = data.rstrip(b"\r\n")
    for position, byte in enumerate(text):
        if not 0x30 <= byte <= 0x39 or position >= MAX_DIGITS:
            raise FormatError("neither empty nor a process id", offset=position, path="pid")
    if not text:
        raise FormatError("neither empty nor a process id", offset=0, path="pid")
    return int(text)


def build(pid: int | None) -> bytes:
    """Return the content that 5.x writes for a process id; for None, the content of a 4.x file."""
    if pid is not None and not 0 <= pid < 10 ** MAX_DIGITS:
        raise FormatError("value does not fit the field", path="pid")
    return b"" if pid is None else b"%d" % pid
