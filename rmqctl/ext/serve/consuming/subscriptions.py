"""Subscriptions of consumers, and their message filters (spec: remoting.md §3.1, Filters).

Like a broker, compare only the hashes of tags; clients compare the tags themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.ext.serve.reading import Accept
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.local import javahash, properties
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.objects import java_text

TAG, SQL = "TAG", "SQL92"
ALL = "*"
_MAX_EXPRESSION = 64 << 10
_VERSION = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic. ``version``: time (ms) at which the client created it."""

    topic: str
    expression: str = ALL
    kind: str = TAG
    version: int = 0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Subscription:
        """Parse a subscription from its object in a heartbeat; missing and invalid fields get
        defaults.
        """
        kind = value.get("expressionType")
        version = value.get("subVersion")
        text = version if isinstance(version, str) and _VERSION.fullmatch(version) else "0"
        return cls(str(value.get("topic") or ""), str(value.get("subString") or ALL),
                   kind if isinstance(kind, str) and kind else TAG,
                   version if isinstance(version, int) else int(text))

    def as_dict(self) -> dict[str, Any]:
        """Return the subscription as a JSON object, as tools expect it."""
        tags = tags_of(self.expression) if self.kind == TAG else ()
        return {"classFilterMode": False, "codeSet": [javahash.string_hash(tag) for tag in tags],
                "expressionType": self.kind, "subString": self.expression,
                "subVersion": self.version, "tagsSet": list(tags), "topic": self.topic}

    def accept(self) -> Accept | None:
        """Return the filter; None if all messages pass.
        Raises: Failed if the expression is invalid.
        """
        if self.kind == TAG:
            return _by_tags(self.expression[:_MAX_EXPRESSION])
        if self.kind != SQL:
            raise Failed(Status.SUBSCRIPTION_PARSE_FAILED,
                         f"unknown filter type {self.kind[:40]}")
        return _by_sql(self.expression)


def tags_of(expression: str) -> tuple[str, ...]:
    """Return the tags in an expression such as ``A || B``; no tags if all messages are wanted."""
    if expression.strip() in ("", ALL):
        return ()
    return tuple(tag for part in expression.split("||") if (tag := part.strip()))


@lru_cache(maxsize=64)  # each pull has its filter with it, or that of its group
def _by_tags(expression: str) -> Accept | None:
    hashes = frozenset(map(javahash.string_hash, tags_of(expression)))
    if not hashes:
        return None
    # An entry may have an address in the extended consume queue instead: the client decides.
    return lambda code, _record: code in hashes or is_address(code)


@lru_cache(maxsize=16)
def _by_sql(expression: str) -> Accept:
    from rmqctl.broker.sql92 import compile_filter

    try:
        matches = compile_filter(expression).matches
    except UsageError as error:
        raise Failed(Status.SUBSCRIPTION_PARSE_FAILED,
                     f"parse the consumer's subscription failed: {error}") from None

    def accept(_code: int, record: bytes | memoryview) -> bool:
        return matches(properties.parse(java_text(decode(record).properties)))

    return accept
