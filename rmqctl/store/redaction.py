"""Redaction of user data in messages: ``--redact``.

Digests replace bodies, keys, unique keys, addresses, the values of applications' properties, and
ids and checksums that would reveal any of these. Topics, groups, tags, times, offsets, flags and
sizes are not redacted.

Under the same key, equal values have equal digests. Without the key, a guessed value cannot be
tested.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from rmqctl.errors import StoreIOError, UsageError
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass

MARK = "redacted"
_DIGEST = 12
_MIN_KEY, _MAX_KEY = 16, 64 << 10
KEPT = frozenset((
    "physical_offset", "total_size", "magic", "crc_ok", "topic", "queue_id", "queue_offset", "flag",
    "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times", "tags",
    "prepared_transaction_offset", "store", "file", "position", "source", "source_offset",
    "placement", "duplicate", "decoded_as"))
"""Fields that are not redacted. A field that is not in this list, such as a new one, is
redacted.
"""
KEPT_PROPERTIES = frozenset((
    props.TAGS, props.DELAY, props.PREPARED, props.REAL_TOPIC, props.REAL_QUEUE_ID,
    props.INNER_NUM, props.INNER_BASE, props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET,
    props.RETRY_TOPIC, props.DLQ_ORIGIN_TOPIC, props.TIMER_OUT_MS, "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES", "WAIT", "PGROUP", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET", "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRACE_ON", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "1ST_POP_TIME", "RMQCTL"))
"""RocketMQ's own properties, whose values are not redacted. Of all other properties, only the name
is shown.
"""
CHECKED = frozenset(("tags",))
"""Fields that are redacted only if their value is invalid. No checksum covers properties, so a
damaged value may include user data.
"""
_UNSOUND = re.compile(r"[\0-\x1f\ud800-\udfff]")
"""Characters that no valid value contains. If the separator after a value is damaged, the value
includes the next property and such characters.
"""
_V4 = r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])(?::\d+)?"
_V6 = r"\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\](?::\d+)?"
_V6_BARE = (r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{0,4}(?![\w:])"
            r"|(?<![\w:])(?:[0-9A-Fa-f]{1,4}:)*:[0-9A-Fa-f:]+")
_IDS = r"(?<![0-9A-Fa-f])(?:[0-9A-F]{56}|[0-9A-F]{40}|[0-9A-F]{32})(?![0-9A-Fa-f])"
ADDRESSES = re.compile(f"{_V4}|{_V6}|{_V6_BARE}|{_IDS}")
"""Pattern of addresses, and of ids that contain one: message ids begin with the broker's
address, unique keys with a client's."""
QUOTED = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_HOSTS = ("born_host", "store_host")


@dataclass(frozen=True, slots=True)
class Redaction:
    """Redacts values. ``key``: the key of the digests, random by default. Digests of several runs
    are comparable only with the same key.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def value(self, value: str | bytes) -> str:
        """Return ``redacted:DIGEST:SIZE``, with the size in bytes."""
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest = hashlib.blake2b(raw, digest_size=_DIGEST, key=self.key[:64]).hexdigest()
        return f"{MARK}:{digest}:{len(raw)}"

    def row(self, row: Mapping[str, Any], body: bytes | None = None) -> dict[str, Any]:
        """Return a message object whose redacted values are digests; ``body``: the stored bytes of
        the body, if the row includes it.
        """
        out = {name: self.field(name, value) for name, value in row.items()}
        if "body" in out and body is not None:
            out["body"] = self.value(body)
        return out

    def field(self, name: str, value: Any) -> Any:
        """Return the value of a field in the form in which it may be shown."""
        if value is None or name in KEPT - CHECKED:
            return value
        if name in CHECKED:
            return self._property(props.TAGS, value)
        if name in _HOSTS:
            address, colon, port = value.rpartition(":")
            return f"{self.value(address)}{colon}{port}"
        if name == "properties":
            pairs = value.items() if isinstance(value, Mapping) else value
            return {key: self._property(key, text) for key, text in pairs}
        if name == "properties_raw":
            shown = {key: self._property(key, text) for key, text in props.parse(value).items()}
            return props.build(shown, trailing=value.endswith(props.PROPERTY_SEPARATOR))
        if name == "keys":
            return [self.value(key) for key in value]
        if name == "body_crc":
            return None
        if name == "body_encoding":
            return MARK
        if name.startswith("property."):
            return self._property(name.removeprefix("property."), value)
        # As in a table, where such a value is text: its digest is the same in every format.
        return self.value(value if isinstance(value, str | bytes) else json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), default=str))

    def condition(self, name: str, value: str) -> str:
        """Return the value of a condition on the field ``name``, redacted unless the field is in
        `KEPT`.
        """
        return value if name in KEPT else self.value(value)

    def text(self, text: str) -> str:
        """Return a sentence with its quoted parts, addresses and ids redacted."""
        for pattern in (QUOTED, ADDRESSES):
            text = pattern.sub(lambda match: self.value(match.group()), text)
        return text

    def document(self, value: Any) -> Any:
        """Return a JSON value in which all texts are redacted like sentences."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.document(item) for key, item in value.items()}
        return [self.document(item) for item in value] if isinstance(value, list) else value

    def _property(self, name: str, value: str) -> str:
        if name in KEPT_PROPERTIES and not _UNSOUND.search(value):
            return value
        if name == props.KEYS:
            return " ".join(map(self.value, props.split_keys(value)))
        return self.value(value)


def redaction_of(key_file: str | None, *, wanted: bool) -> Redaction | None:
    """Return the redaction that the options ``--redact`` and ``--redact-key`` request; None if none
    is requested.

    Raises: UsageError, StoreIOError.
    """
    if key_file is None:
        return Redaction() if wanted else None
    if not wanted:
        raise UsageError("--redact-key requires --redact")
    try:
        fd = os.open(key_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"--redact-key {key_file}: not a regular file")
            file.seek(0)  # /dev/fd/N may share its position with other processes
            key = file.read(_MAX_KEY + 1)
    except OSError as error:
        raise StoreIOError.from_oserror(error, key_file, "read") from None
    if not _MIN_KEY <= len(key) <= _MAX_KEY:
        raise UsageError(f"--redact-key {key_file}: {len(key):,} bytes; expected {_MIN_KEY} to "
                         f"{_MAX_KEY:,}, for example from `head -c 32 /dev/urandom`")
    return Redaction(hashlib.sha256(key).digest())
