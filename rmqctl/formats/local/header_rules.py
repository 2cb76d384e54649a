"""Checks for field values that no broker can have written (spec: commitlog.md §2, §4 and §9).

The rules are plain comparisons. They accept the values of one record, or columns of many records.

A producer or an unusual machine may cause unusual values that are not faults: port 0, any host,
flags that only older brokers wrote, a clock that was set back or is wrong by some months.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqctl.formats.bodies import CODECS
from rmqctl.formats.local import delay, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record

BORN_PORT, STORE_PORT = "header-born-port", "header-store-port"
SYS_FLAG, RECONSUME = "header-sys-flag", "header-reconsume-times"
PREPARED, QUEUE_ID = "header-prepared-offset", "header-queue-id"
STORE_TIME, STORE_HOST = "header-store-time", "header-store-host"
NUMBER, EARLY, BACK = "property-number", "early-times", "clock-back"
FLAG_BITS, BORN_TIME = "header-flag-bits", "header-born-time"
QUEUE_OFFSET = "header-queue-offset"
ALONE = (BORN_PORT, STORE_PORT, SYS_FLAG, RECONSUME, PREPARED, QUEUE_ID, FLAG_BITS, QUEUE_OFFSET)
"""Categories of faults that are visible in a record's header alone."""
UNDECODABLE = (BORN_PORT, STORE_PORT, SYS_FLAG)
"""Faults that make a client's decoder drop the faulty message and all later messages in a pull."""
DELAY_BITS, INNER = 32, {props.INNER_BASE: 64, props.INNER_NUM: 16}
"""Width in bits of the numeric properties that a broker parses when it checks a record.
``DELAY_BITS``: width of DELAY. ``INNER``: widths of the two properties of an inner batch.
"""
FIELDS = ("born_host.port", "store_host.port", "sys_flag", "reconsume_times",
          "prepared_transaction_offset", "queue_id", "queue_offset", "physical_offset")
"""The numeric fields that `alone` reads, named like the columns of a batch."""
MAX_PORT = 0xFFFF
EARLIEST = 1_325_376_000_000
"""2012-01-01 (ms): no broker existed before this time."""
YEARS = 2 * 365 * 24 * 3600 * 1000
HALF_A_YEAR = YEARS // 4
MAX_RECONSUME_TIMES = 1 << 16
TIME_SLACK = 1000
"""Maximum time in ms by which a store time may be out of order without being reported."""
LONG_PAUSE = 30 * 24 * 3600 * 1000
"""Maximum time (ms) between the first two messages, and between the last two messages. After a
longer pause, the first or the last message is reported as out of order.
"""
"""Maximum plausible value of reconsume times."""
_LAST_CODEC = max(CODECS)
KIND = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK
MAX_KIND = (_LAST_CODEC << sysflag.COMPRESSION_SHIFT) | sysflag.COMPRESSED


def alone(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each category of `ALONE`, whether a record breaks the rule of that category.

    ``values``: numbers or columns of `FIELDS`. The results for numbers are booleans, those for
    columns are boolean arrays.
    """
    born, store = values["born_host.port"], values["store_host.port"]
    kind, times = values["sys_flag"] & KIND, values["reconsume_times"]
    prepared = values["prepared_transaction_offset"]
    return {
        BORN_PORT: (born < 0) | (born > MAX_PORT),
        STORE_PORT: (store < 0) | (store > MAX_PORT),
        SYS_FLAG: (kind > MAX_KIND) & ((kind & sysflag.COMPRESSED) != 0),
        RECONSUME: (times < 0) | (times > MAX_RECONSUME_TIMES),
        PREPARED: (prepared < 0) | (prepared > values["physical_offset"]),
        QUEUE_ID: values["queue_id"] < 0,
        FLAG_BITS: (values["sys_flag"] & ~sysflag.KNOWN_BITS) != 0,
        # For prepared and rolled back messages, which have no consume queue entry.
        QUEUE_OFFSET: (values["queue_offset"] != 0) & (
            (values["sys_flag"] & sysflag.TRANSACTION_PREPARED) != 0),
    }


def of_record(record: Record) -> list[str]:
    """Return the categories in `ALONE` whose rules a record breaks."""
    broken_rules = alone({
        "born_host.port": record.born_host[1], "store_host.port": record.store_host[1],
        "sys_flag": record.sys_flag, "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "queue_id": record.queue_id, "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset})
    return [name for name, broken in broken_rules.items() if broken]


def is_number(value: str, bits: int) -> bool:
    """Return whether a broker can parse a property's value as a signed number of ``bits`` bits."""
    try:
        delay.java_int(value, bits)
    except ValueError:
        return False
    return True


def bad_number(values: Mapping[str, str], topic: bytes, generation: int) -> str:
    """Return the name of a property that makes a broker's check of the record throw an exception,
    or "".

    DELAY is checked only in the schedule topic. The two properties of an inner batch are checked
    for 5.x, if both exist (spec: commitlog.md §9).
    """
    parsed = {props.DELAY: DELAY_BITS} if topic == props.SCHEDULE_TOPIC.encode() else {}
    if generation >= 5 and all(name in values for name in INNER):
        parsed |= INNER
    return next((name for name, bits in parsed.items()
                 if name in values and not is_number(values[name], bits)), "")


def stored_at_odd_time(before: Any, time: Any, behind: Any) -> Any:
    """Return whether a store time (ms) is impossible compared with the times of its neighbors.

    A time is impossible if it is before brokers existed, or years after both neighbors. If all
    three times come from a wrong clock, nothing is reported.
    """
    early = (time < EARLIEST) & (before >= EARLIEST) & (behind >= EARLIEST)
    # Subtracted from the nonnegative one, so that 64 bits do not overflow.
    return early | ((time >= 0) & (time - YEARS > before) & (time - YEARS > behind))


def clock_went_back(time: Any, behind: Any) -> Any:
    """Return whether a message's store time is at least half a year after that of the next message.

    This shows that the clock was fast before or slow afterwards. If the clock was never set,
    `EARLY` is reported instead.
    """
    return (behind >= EARLIEST) & (time >= 0) & (time - HALF_A_YEAR > behind)


def born_at_odd_time(born: Any, stored: Any) -> Any:
    """Return whether a born time (ms) is impossible: negative, or years after the store time.

    If the broker's own clock was never set, nothing is reported.
    """
    # Subtracted from the nonnegative one, so that 64 bits do not overflow.
    return (born < 0) | ((born >= 0) & (stored >= EARLIEST) & (born - YEARS > stored))
