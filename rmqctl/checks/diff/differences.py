"""What `diff` finds: one difference between two stores, and how two records differ in words.

The stores are called ``a`` and ``b``, as on the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, host_text
from rmqctl.store.objects import text

Kind = Literal["different", "missing-in-a", "missing-in-b", "damaged-in-a", "damaged-in-b",
               "queue", "config"]
PLACE = frozenset({"physical_offset", "store_host", "prepared_transaction_offset", "magic",
                   "total_size"})
"""Fields that follow from where a message is stored; another store has others."""
_SHOWN = 40
_BYTES = 8
_TOLD = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. Offsets and lengths are of ``a``, of ``b`` where ``a`` has nothing.

    ``physical_offset_b`` and ``msg_id_b`` are set where b has others than a. ``fields`` names
    what differs (``properties.NAME`` for one property); ``structure`` is commitlog,
    consumequeue or config.
    """

    kind: Kind
    structure: str = "commitlog"
    file: str | None = None
    physical_offset: int | None = None
    length: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    msg_id: str | None = None
    unique_key: str | None = None
    physical_offset_b: int | None = None
    msg_id_b: str | None = None
    fields: tuple[str, ...] = ()
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; what does not apply is null."""
        found = {name: getattr(self, name) for name in COLUMNS}
        found["fields"] = list(self.fields)
        return found


COLUMNS = tuple(one.name for one in fields(Difference))


@dataclass(slots=True)
class Differences:
    """Keeps the first ``most`` differences and counts all of them by kind."""

    most: int = 1000
    kept: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def room(self) -> int:
        """How many more would be kept: the work of wording the others can be saved."""
        return max(self.most - len(self.kept), 0)

    def add(self, one: Difference) -> None:
        self.counts[one.kind] += 1
        if self.room:
            self.kept.append(one)

    def count(self, kind: Kind, more: int) -> None:
        """Counts differences that are not kept."""
        if more:
            self.counts[kind] += more


# -- records --------------------------------------------------------------------------------------


def of_record(kind: Kind, record: Record, detail: str = "") -> Difference:
    """A message that only one of the stores has."""
    return Difference(kind, **_identity(record), detail=detail)


def of_pair(a: Record, b: Record, *, ignored: frozenset[str] = frozenset()) -> Difference:
    """Two messages at the same place (or of the same queue offset) that are not the same."""
    differing = differences_of(a, b, ignored=ignored)
    elsewhere: dict[str, Any] = {}
    if b.physical_offset != a.physical_offset:
        elsewhere["physical_offset_b"] = b.physical_offset
    if b.message_id != a.message_id:
        elsewhere["msg_id_b"] = b.message_id
    return Difference("different", **_identity(a), **elsewhere, fields=tuple(differing),
                      detail=_told(a, b, differing))


def _identity(record: Record) -> dict[str, Any]:
    found = props.parse(text(record.properties))
    return {"physical_offset": record.physical_offset, "length": record.total_size,
            "topic": text(record.topic), "queue_id": record.queue_id,
            "queue_offset": record.queue_offset, "msg_id": record.message_id,
            "unique_key": found.get(props.UNIQUE_KEY)}


def differences_of(a: Record, b: Record, *, ignored: frozenset[str] = frozenset()) -> dict[
        str, tuple[Any, Any]]:
    """Names of the fields that differ, in the order of the record, with both values.

    With ``ignored`` fields (`PLACE`) the appended property CRC, the bit of sys_flag that tells
    the width of the store host, and the order of the properties are not looked at either.
    """
    out: dict[str, tuple[Any, Any]] = {}
    for one in fields(Record):
        name = one.name
        left, right = getattr(a, name), getattr(b, name)
        if name == "sys_flag" and "store_host" in ignored:
            left, right = (flag & ~sysflag.STORE_HOST_V6 for flag in (left, right))
        if name == "properties":
            out.update(_properties(left, right, exact="store_host" not in ignored))
        elif left != right and name not in ignored:
            out[name] = left, right
    return out


def _properties(a: bytes, b: bytes, *, exact: bool) -> dict[str, tuple[Any, Any]]:
    if a == b:
        return {}
    left, right = props.parse(text(a)), props.parse(text(b))
    if not exact:
        left.pop(props.CRC32, None)
        right.pop(props.CRC32, None)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    if not names and exact:  # the same map in another order, or with another separator at the end
        return {"properties": (a, b)}
    return {f"properties.{name}": (left.get(name), right.get(name)) for name in names}


def _told(a: Record, b: Record, differing: Mapping[str, tuple[Any, Any]]) -> str:
    bad = [name for name, one in (("a", a), ("b", b)) if one.body and not one.crc_ok]
    told = [f"the body in {' and in '.join(bad)} does not match its CRC"] if bad else []
    told += [_pair(name, left, right) for name, (left, right) in list(differing.items())[:_TOLD]]
    if len(differing) > _TOLD:
        told.append(f"{len(differing) - _TOLD} more fields")
    return "; ".join(told)


def _pair(name: str, left: Any, right: Any) -> str:
    """``flag 0 / 7``; of bytes the place where they part."""
    if not isinstance(left, bytes):
        return f"{name} {_value(left)} / {_value(right)}"
    shorter = min(len(left), len(right))
    at = next((at for at in range(shorter) if left[at] != right[at]), shorter)
    size = f"{len(left)} bytes" if len(left) == len(right) else (
        f"{len(left)} / {len(right)} bytes")
    return (f"{name} of {size}, other from byte {at} on: {left[at:at + _BYTES].hex() or 'end'} / "
            f"{right[at:at + _BYTES].hex() or 'end'}")


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return host_text(*value)
    if isinstance(value, str):
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    return str(value)
