"""``brokerIdentity``, a file of controller mode: ``cluster#name#id``.

spec: checkpoint-and-small-files.md §5. ``brokerIdentity-temp`` has a fourth part, the code of a
registration in progress.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqctl.errors import FormatError
from rmqctl.formats.local.delay import java_int

SEPARATOR = "#"
PARTS = ("cluster", "broker_name", "broker_id", "register_check_code")


class BrokerIdentity(NamedTuple):
    """The identity that the controller assigned to this broker."""

    cluster: str
    broker_name: str
    broker_id: int
    register_check_code: str | None = None


def pieces(data: bytes) -> list[tuple[str, int, bytes]]:
    """Return (field name, offset, bytes) of each part that exists."""
    parts = []
    position = 0
    for name, raw in zip(PARTS, data.rstrip(b"\r\n").split(SEPARATOR.encode(), len(PARTS) - 1),
                         strict=False):
        parts.append((name, position, raw))
        position += len(raw) + len(SEPARATOR)
    return parts


def parse(data: bytes) -> BrokerIdentity:
    """Return the identity in a file's content.

    Raises: FormatError that names the missing or invalid part.
    """
    texts: list[str] = []
    for name, position, raw in pieces(data):
        try:
            texts.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise FormatError("not UTF-8", offset=position + error.start, path=name) from None
        if not raw:
            raise FormatError("empty", offset=position, path=name)
    required = len(PARTS) - 1
    if len(texts) < required:
        raise FormatError("missing", offset=len(data), path=PARTS[len(texts)])
    try:
        broker_id = java_int(texts[2], 64)
    except ValueError:
        position = pieces(data)[2][1]
        raise FormatError("not a 64-bit number", offset=position, path=PARTS[2]) from None
    return BrokerIdentity(texts[0], texts[1], broker_id, *texts[required:])


def build(identity: BrokerIdentity) -> bytes:
    """Return a file's content with the identity."""
    parts = [identity.cluster, identity.broker_name, str(identity.broker_id)]
    if identity.register_check_code is not None:
        parts.append(identity.register_check_code)
    raw = SEPARATOR.join(parts).encode("utf-8")
    if parse(raw) != identity:
        raise FormatError("contains the separator or a line break", path=PARTS[0])
    return raw
