"""Conditions on messages: one field, an operator, a value.

A field is a field of the message object, ``property.NAME`` for one property, or ``body.PATH`` for a
field of the decoded body. A condition is evaluated for an entire page of messages at once. A text
is extracted from a record only if the record contains the bytes of the wanted value
(`Page.candidates`).
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import RawCondition, parse_condition, parse_time, ungrouped
from rmqctl.scan.frames import Array
from rmqctl.store.objects import FIELDS, OF_BODY, PROPERTY, TIMES
from rmqctl.store.pages import INTEGERS, Page

if TYPE_CHECKING:
    from rmqctl.store.decoded import Decoding

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~"]
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge}
_NO_CONDITION = ("properties",)
_MIN_NEEDLE = 3
"""Minimum length in bytes of a value for which records are searched before texts are extracted.
Shorter values occur in most bodies.
"""

KEY = "key"
"""A pseudo field for conditions: a message's application keys and its unique key together."""
TEXT = "text"
"""A pseudo field for conditions: a message's tags, keys, unique key and body together; ``=``
means "contains"."""


def read_condition(given: str | RawCondition, tz: tzinfo,
                   decoding: Callable[[], Decoding] | None = None) -> Condition:
    """Parse a condition. Times may have any format of the command line, in the zone ``tz``.
    ``decoding`` is called for a condition on a field of the body.

    Raises: UsageError.
    """
    field, operator, value = parse_condition(given)
    return Condition.of(field, operator, parse_time(value, tz=tz)
                        if field in TIMES and "~" not in operator else value,
                        decoding() if decoding and field.startswith(OF_BODY) else None)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition ``field operator value``.

    ``value``: an int for number fields, a bool for ``crc_ok``, else text.
    ``any_of``: the alternatives of an ``=`` (topics, or the tags of an expression ``A || B``).
    ``decoding``: decodes bodies for a condition on a body's field.
    """

    field: str
    operator: Operator
    value: int | bool | str
    any_of: tuple[str, ...] = ()
    decoding: Decoding | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, field: str, operator: str, value: int | str,
           decoding: Decoding | None = None) -> Condition:
        """Return a checked condition; the text ``value`` is converted to the type of the field.
        Conditions on fields of bodies need ``decoding``.

        Raises: UsageError.
        """
        if operator not in OPERATORS:
            raise UsageError(f"no operator {operator!r}; valid operators: {' '.join(OPERATORS)}")
        valid = [name for name in FIELDS if name not in _NO_CONDITION]
        is_property = field.startswith(PROPERTY) and field != PROPERTY
        is_of_body = field.startswith(OF_BODY) and field != OF_BODY
        if not (field in valid or field in (KEY, TEXT) or is_property or is_of_body):
            raise UsageError(f"no field {field!r} to compare; valid fields: {', '.join(valid)}, "
                             f"{PROPERTY}NAME and {OF_BODY}FIELD")
        if is_of_body and decoding is None:
            raise UsageError(f"{field}: this command does not decode bodies")
        if operator in ("~", "!~"):
            from rmqctl.store.query import patterns

            patterns.check(str(value))
            return cls(field, operator, str(value), decoding=decoding if is_of_body else None)
        if field in INTEGERS:
            value = _number(field, value)
        elif field == "crc_ok":
            if str(value).lower() not in ("true", "false"):
                raise UsageError(f"crc_ok: expected true or false, got {value!r}")
            value = str(value).lower() == "true"
        return cls(field, operator, value, decoding=decoding if is_of_body else None)

    @property
    def cost(self) -> int:
        """The relative cost of checking the condition: 2 if bodies must be decoded, 1 if a text
        must be extracted from the log, else 0.
        """
        return 2 if self.decoding is not None else int(
            self.field not in INTEGERS and self.field != "topic")

    def holds(self, page: Page) -> Array:
        """Return a boolean array: whether the condition holds for each message of the page."""
        if self.operator in _COMPARE and (self.field in INTEGERS or self.field == "crc_ok"):
            mask: Array = _COMPARE[self.operator](page.numbers(self.field), self.value)
            return mask
        if self.field == "topic" and self.operator == "=":
            chosen: Array = np.logical_or.reduce([
                page.is_topic(topic.encode("utf-8", "surrogateescape"))
                for topic in self.any_of or (str(self.value),)])
            return chosen
        if self.decoding is not None:
            return np.fromiter((self._test_decoded(decoded.of_body(self.field))
                                for decoded in self.decoding.rows(page)), bool, len(page))
        out: Array = np.zeros(len(page), bool)
        rows = self._candidates(page)
        if not len(rows):
            return out
        part = page if len(rows) == len(page) else page.select(rows)
        out[rows] = [self._test(value) for value in self._values(part)]
        return out

    def _candidates(self, page: Page) -> Array:
        """Return the indices of the messages for which the condition may hold, because their bytes
        contain the wanted text.
        """
        wanted = self.any_of or (str(self.value),)
        if (self.operator == "=" and self.field in _STORED_TEXTS) or (
                self.operator == "=" and self.field.startswith(PROPERTY)):
            needles = [needle.encode("utf-8", "surrogateescape") for needle in wanted]
            if all(len(text) >= _MIN_NEEDLE for text in needles):
                return page.candidates(needles)
        return np.arange(len(page))

    def _values(self, page: Page) -> Sequence[Any]:
        if self.field == KEY:
            return [[*keys, unique] if unique else keys for keys, unique in zip(
                page.column("keys"), page.column("unique_key"), strict=True)]
        if self.field == TEXT:
            return [[body, *keys, *(text for text in (tags, unique) if text)]
                    for body, keys, tags, unique in zip(*map(page.column, (
                        "body", "keys", "tags", "unique_key")), strict=True)]
        if self.field.startswith(PROPERTY):
            name = self.field.removeprefix(PROPERTY)
            return [properties.get(name) for properties in page.column("properties")]
        return page.column(self.field)

    def _test(self, value: Any) -> bool:
        # several keys: one that matches is enough; for a "not" none may match
        if isinstance(value, list):
            if not value:
                return self._test(None)
            if self.operator in ("!=", "!~"):
                return all(self._test(item) for item in value)
            return any(self._test(item) for item in value)
        if self.any_of:
            return value in self.any_of
        text = "" if value is None else str(value)
        if self.operator in ("~", "!~"):
            from rmqctl.store.query import patterns

            matches = value is not None and patterns.matches(str(self.value), text)
            return matches == (self.operator == "~")
        if self.field == TEXT and self.operator in ("=", "!="):
            return (str(self.value) in text) == (self.operator == "=")
        if self.operator == "=":
            return text == self.value
        if self.operator == "!=":
            return text != self.value
        if value is None:
            return False
        return bool(_COMPARE[self.operator](*_comparable(text, str(self.value))))

    def _test_decoded(self, value: Any) -> bool:
        """Return whether the condition holds for a field of a decoded body.

        Numbers are compared as numbers, and texts like the values of properties. For a list, the
        condition must hold for at least one item, but a "not" condition must hold for all items.
        The condition never holds for a missing value or an object.
        """
        if isinstance(value, list):
            every = all if self.operator in ("!=", "!~") else any
            return bool(value) and every(self._test_decoded(item) for item in value)
        if isinstance(value, str):
            return self._test(value)
        if value is None or isinstance(value, bool):
            words = {None: "null", True: "true", False: "false"}[value]
            return self.operator in ("=", "!=", "~", "!~") and self._test(words)
        if not isinstance(value, int | float):
            return False
        if "~" in self.operator:
            return self._test(str(value))
        wanted = _any_number(str(self.value))
        if wanted is None:
            return self.operator == "!="
        return bool(_COMPARE[self.operator](value, wanted))


_STORED_TEXTS = (KEY, TEXT, "tags", "keys", "unique_key")


def _number(field: str, value: int | str) -> int:
    if isinstance(value, int):
        return value
    try:
        number = int(ungrouped(value), 0)
    except ValueError:
        raise UsageError(f"{field}: expected an integer, got {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise UsageError(f"{field}: {value!r} does not fit into 64 bits")
    return number


_NUMBER = re.compile(r"[-+]?[0-9]{1,400}(\.[0-9]{0,400})?([eE][-+]?[0-9]{1,4})?")


def _any_number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("-+").isdigit() else float(text)


def _comparable(text: str, other: str) -> tuple[Any, Any]:
    """Return two texts as numbers if both are integers, otherwise unchanged."""
    if all(re.fullmatch("-?[0-9]{1,40}", text) for text in (text, other)):
        return int(text), int(other)
    return text, other


def tags_of(expression: str) -> tuple[str, ...]:
    """Return the tags of a consumer's subscription (``A || B``).

    Raises: UsageError for an empty expression.
    """
    tags = tuple(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise UsageError("Empty tag expression; expected TAG or 'A || B'.")
    return tags


def tag_condition(expression: str) -> Condition:
    """Return the condition of ``--tag``: one tag, or several in the syntax of a subscription.

    Raises: UsageError.
    """
    tags = tags_of(expression)
    if len(tags) == 1:
        return Condition("tags", "=", tags[0])
    return Condition("tags", "=", expression, tags)


def is_plain(text: str) -> bool:
    """Return whether a text was decoded from its bytes without loss. If not, its hash in a broker
    is unknown.
    """
    return bool(text) and "\ufffd" not in text and not any("\ud800" <= char <= "\udfff"
                                                          for char in text)


def filtered(page: Page, conditions: Iterable[Condition]) -> Page:
    """Return a page with the messages for which all conditions hold."""
    for condition in conditions:
        if not len(page):
            break
        matching = condition.holds(page)
        if not matching.all():
            page = page.select(np.flatnonzero(matching))
    return page
