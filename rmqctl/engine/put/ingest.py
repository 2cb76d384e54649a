"""The changes that a broker makes to a message before it reaches the put path
(`SendMessageProcessor`, `TransactionalMessageBridge`; spec: commitlog.md §3 and §5.3, recovery.md
§10).

A single message gets the property ``CLUSTER`` and, from a 5.x broker, ``UNIQ_KEY``. Its properties
string is rebuilt in the order of the broker's map. 5.x drops ``POP_CK``, 4.9.3 drops ``WAIT``.

`batches` joins messages to batches, as a producer does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from itertools import count, repeat
from struct import Struct
from typing import NamedTuple, TypeVar

from rmqctl.broker.settings import LOCALHOST, Settings
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch
from rmqctl.engine.put.rewrite import WAIT
from rmqctl.formats.config.java_map import ordered
from rmqctl.formats.local import append_crc, message
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import delay_level_of
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.sysflag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from rmqctl.parse_values import now_ms

MAX_BATCH = 4 << 20
"""Maximum total bytes of the records in a batch, which all versions accept."""
CLUSTER = "CLUSTER"
POP_CHECKPOINT = "POP_CK"

_NAME, _END = props.NAME_VALUE_SEPARATOR, props.PROPERTY_SEPARATOR
_FIXED = Struct(">Hi")
_MOVING = Struct(">iH")
_CLOCK_SET_BACK = 1_000_000
_MAX_PLANS = 1024

_ALONE = TRANSACTION_MASK | INNER_BATCH | NEED_UNWRAP
_MAX_AROUND = message.size_of(message.HOST_BITS, message.MAGIC_V2, 0, 0, append_crc.SIZE + 1)
"""Maximum size in bytes of a record, not counting its body, topic and properties."""
_Put = TypeVar("_Put", bound=Outgoing | OutgoingBatch | Record)


def unique_ids(address: bytes = LOCALHOST, *, clock: Callable[[], int] = now_ms,
               process: int | None = None, loader: int | None = None, counter: int = 0,
               zone: tzinfo = UTC) -> Callable[[], str]:
    """Return a function that creates a new unique id, like a client's, at each call. An id has 32
    (IPv4) or 56 (IPv6) upper-case hex digits:

    * address
    * process id (``process``; default: this process)
    * hash of a class loader (``loader``; default: a random number)
    * milliseconds since the start of the month in ``zone`` (in Java: the local time zone)
    * counter
    """
    fixed = address + _FIXED.pack(
        (os.getpid() if process is None else process) & 0xFFFF,
        random.SystemRandom().getrandbits(31) if loader is None else loader)
    counts = count(counter)
    start, end = _month(clock(), zone)

    def make() -> str:
        nonlocal start, end
        now = clock()
        if now >= end:
            start, end = _month(now, zone)
        since = now - start
        if -_CLOCK_SET_BACK < since < 0:
            since = 0
        since = (since + (1 << 31)) % (1 << 32) - (1 << 31)
        return (fixed + _MOVING.pack(since, next(counts) & 0xFFFF)).hex().upper()

    return make


def _month(now: int, zone: tzinfo) -> tuple[int, int]:
    """Return the starts (ms) of the month that contains ``now``, and of the next month."""
    start = datetime.fromtimestamp(now / 1000, zone).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp()) * 1000, int(after.timestamp()) * 1000


def prepare(properties: Mapping[str, str] | str, settings: Settings,
            unique_id: Callable[[], str], *, batch: bool = False, rebuilt: bool = False) -> str:
    """Return the properties string with which a message reaches the put path.

    * ``properties``: sent by the client, as a string or as pairs in the order of that string. Pairs
      with an empty value are dropped, as a broker's parser does.
    * ``batch``: whether the properties belong to a batch as a whole. They get no unique key and
      keep ``WAIT``.
    * ``rebuilt``: whether the broker builds the string a second time from its map, as for a half
      message. In 4.9.3, this map still contains ``WAIT``. For a delayed message the string is
      always built a second time.

    Raises: ValueError for an empty key, a key with 0x01 or 0x02, a value with 0x02, or a value that
    is not text.
    """
    pairs = props.parse(properties) if isinstance(properties, str) else _pairs(properties)
    profile = settings.profile
    if profile.ensures_unique_key:
        pairs.pop(POP_CHECKPOINT, None)
        if not batch and props.UNIQUE_KEY not in pairs:
            pairs[props.UNIQUE_KEY] = unique_id()
    pairs[CLUSTER] = settings.cluster
    left_out = None
    if WAIT in pairs and not (batch or profile.stores_wait):
        # It was removed from the string and put into the map again, so it is last in its bucket.
        pairs[WAIT] = pairs.pop(WAIT)
        left_out = None if rebuilt or _is_delayed(pairs) else WAIT
    keys = tuple(pairs)
    text = "".join([f"{keys[number]}{_NAME}{pairs[keys[number]]}{_END}"
                    for number in ordered(keys, profile.map_capacity)
                    if keys[number] != left_out])
    return text if profile.trailing_separator else text[:-1]


class _Plan(NamedTuple):
    """A plan for joining properties with certain names: everything that does not depend on their
    values.
    """

    parts: tuple[str, ...]
    """The texts before, between and after the values of the properties."""
    names: tuple[str, ...]
    """The names of the properties whose values the plan inserts, including a unique key that must
    be created.
    """
    ends: int
    """Number of property separators in these texts."""
    makes_unique_key: bool


class Preparer:
    """`prepare` for many messages. Work that depends only on the property names is done once for
    each set of names.
    Raises: ValueError as in `prepare`.
    """

    def __init__(self, settings: Settings, unique_id: Callable[[], str], *,
                 batch: bool = False) -> None:
        self._settings, self._unique_id, self._batch = settings, unique_id, batch
        self._plans: dict[tuple[str, ...], _Plan | None] = {}

    def __call__(self, properties: Mapping[str, str] | str) -> str:
        """Return the properties string of a message."""
        return self.many([properties])[0]

    def many(self, properties: Sequence[Mapping[str, str] | str]) -> list[str]:
        """Return the properties strings of messages, in order."""
        if set(map(type, properties)) != {dict}:
            return [self._prepared(pairs) for pairs in properties]
        names = list(map(tuple, properties))
        if names.count(names[0]) == len(names):
            return self._same(names[0], properties)  # type: ignore[arg-type]  # they are dicts
        # Group by names: usually many messages share a few sets of names.
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, its_names in enumerate(names):
            rows.setdefault(its_names, []).append(row)
        texts = [""] * len(names)
        for its_names, its_rows in rows.items():
            joined = self._same(its_names,
                                [properties[row] for row in its_rows])  # type: ignore[misc]
            for row, text in zip(its_rows, joined, strict=True):
                texts[row] = text
        return texts

    def _prepared(self, properties: Mapping[str, str] | str) -> str:
        return prepare(properties, self._settings, self._unique_id, batch=self._batch)

    def _same(self, names: tuple[str, ...], properties: Sequence[Mapping[str, str]]) -> list[str]:
        """Return the properties strings of messages that all have these property names."""
        plan = self._plans.get(names, _UNKNOWN)
        if plan is _UNKNOWN:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._plan(names)
        if plan is None:
            return [self._prepared(pairs) for pairs in properties]
        columns: list[Iterable[str]] = [repeat(plan.parts[0])]
        fits = True
        for name, part in zip(plan.names, plan.parts[1:], strict=True):
            if name == props.UNIQUE_KEY and plan.makes_unique_key:
                values = [self._unique_id() for _ in properties]
            else:
                values = [pairs[name] for pairs in properties]
                fits = fits and "" not in values
            columns += (values, repeat(part))
        # Unplanned: an empty value, a separator in a value, or a value that is not text.
        try:
            texts = list(map("".join, zip(*columns, strict=False))) if fits else []
        except TypeError:
            fits = False
        if not fits or "".join(texts).count(_END) != plan.ends * len(texts):
            return [self._prepared(pairs) for pairs in properties]
        return texts

    def _plan(self, names: tuple[str, ...]) -> _Plan | None:
        """Return the plan for joining properties with these names; None if a name is invalid or the
        plan depends on values.
        """
        profile, batch = self._settings.profile, self._batch
        special = {props.DELAY, POP_CHECKPOINT, CLUSTER}
        if not (batch or profile.stores_wait):
            special.add(WAIT)
        if not names or special.intersection(names) or not all(map(_is_name, names)):
            return None
        unique = profile.ensures_unique_key and not batch and props.UNIQUE_KEY not in names
        keys = (*names, *([props.UNIQUE_KEY] if unique else []), CLUSTER)
        parts, wanted = [""], []
        for number in ordered(keys, profile.map_capacity):
            name = keys[number]
            parts[-1] += name + _NAME
            if name == CLUSTER:
                parts[-1] += self._settings.cluster
            else:
                wanted.append(name)
                parts.append("")
            parts[-1] += _END
        if not profile.trailing_separator:
            parts[-1] = parts[-1].removesuffix(_END)
        return _Plan(tuple(parts), tuple(wanted), "".join(parts).count(_END), unique)


_UNKNOWN = _Plan((), (), 0, makes_unique_key=False)


def _is_name(given: object) -> bool:
    """Return whether ``given``, which may have any type, is valid as the name of a property."""
    return isinstance(given, str) and bool(given) and _NAME not in given and _END not in given


def _pairs(properties: Mapping[str, str]) -> dict[str, str]:
    try:
        names, values = "".join(properties), "".join(properties.values())
    except TypeError:
        raise ValueError("a property's name and value must be strings") from None
    if _NAME in names or _END in names or "" in properties:
        wrong = next(name for name in properties if not name or _NAME in name or _END in name)
        raise ValueError(f"{wrong[:40]!r} cannot be a property name: it is empty or contains 0x01 "
                         "or 0x02, which separate properties")
    if _END in values:
        wrong = next(name for name, value in properties.items() if _END in value)
        raise ValueError(f"the value of the property {wrong[:40]!r} contains 0x02, which "
                         "separates properties")
    return {name: value for name, value in properties.items() if value}


def _is_delayed(properties: Mapping[str, str]) -> bool:
    try:
        return delay_level_of(properties) > 0
    except ValueError:
        return False


# -- batches ------------------------------------------------------------------------------------


def batches(items: Iterable[_Put], limit: int,
            room: int = MAX_BATCH) -> Iterator[_Put | Outgoing | OutgoingBatch]:
    """Join adjacent messages that may be in the same batch. The order of messages does not change.
    A batch has at most ``limit`` messages, and its records have at most ``room`` bytes.

    A message that cannot be joined with a neighbor is yielded alone. Batches, records, and messages
    that a broker rejects in a batch or treats in a special way are also yielded alone.
    """
    run: list[Outgoing] = []
    shared: tuple[object, ...] | None = None
    size = 0
    for item in items:
        common = _common(item) if isinstance(item, Outgoing) else None
        if not isinstance(item, Outgoing) or common is None:
            if run:
                yield _together(run)
                run, size = [], 0
            yield item
            continue
        more = _at_most(item)
        if run and (common != shared or len(run) >= limit or size + more > room):
            yield _together(run)
            run, size = [], 0
        run.append(item)
        shared, size = common, size + more
    if run:
        yield _together(run)


def _common(item: Outgoing) -> tuple[object, ...] | None:
    """Return the values that must be equal in all messages of a batch; None for a message that
    cannot be in a batch.
    """
    text = item.properties
    if (item.sys_flag & _ALONE or item.prepared_transaction_offset
            or item.topic.startswith(props.RETRY_PREFIX)):
        return None
    if (props.DELAY in text or "INNER_" in text or "TIMER_" in text) and any(
            name == props.DELAY or name.startswith(("INNER_", "TIMER_"))
            for name in props.parse(text)):
        return None
    return (item.topic, item.queue_id, item.sys_flag, item.born_timestamp, item.born_host,
            item.store_timestamp, item.store_host, item.reconsume_times)


def _at_most(item: Outgoing) -> int:
    """Return an upper bound for the size in bytes of a message's record, including an appended
    CRC.
    """
    texts = item.topic, item.properties
    return _MAX_AROUND + len(item.body) + sum(
        len(text) if text.isascii() else 4 * len(text) for text in texts)


def _together(run: list[Outgoing]) -> Outgoing | OutgoingBatch:
    first = run[0]
    if len(run) == 1:
        return first
    return OutgoingBatch(
        first.topic,
        [BatchItem(outgoing.body, outgoing.properties, outgoing.flag, outgoing.filter_bit_map)
         for outgoing in run], "",
        first.queue_id, first.sys_flag, first.born_timestamp, first.born_host,
        first.store_timestamp, first.store_host, first.reconsume_times)
