"""What became of each message of a store that was damaged and recovered.

The store as it was before its damage is the judge: a message that `recover` presents as a good
one has the bytes that its producer sent, at its place and at its queue offset, or it is wrong.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import DAMAGED, MARK, is_filler
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.plan import Action, Plan
from tests.repair import salvaging
from tests.repair.campaign.stores import Base
from tests.support.model import java_hash

FATES = ("damaged", "corrected", "copied", "mended", "filled", "kept", "unseen", "near", "lost",
         "left out", "misplaced", "theirs", "wrong")
"""What is counted of a trial. ``damaged`` messages are one of these afterwards: *corrected*,
*copied*, *mended*: the very bytes again, by `--correct`, from a source, or by what is known
elsewhere; *filled*: a filler stands at their queue offset; *kept*: delivered as damaged, and
marked; *unseen*: bytes that nothing covers stay as the damage left them; *near*: a field that
nothing tells has a value that does no harm; *lost*: nothing stands for them; *theirs* gave way to
a source that was preferred. *Left out* are intact ones that the plan leaves out, and says so;
*misplaced* ones have a row at another queue offset, behind a gap of which the plan warns. *wrong*:
what must not be."""
HARMLESS = ("born_host", "store_host", "born_timestamp", "store_timestamp", "reconsume_times",
            "prepared_transaction_offset", "sys_flag", "properties")
"""Fields that `recover` sets to what does no harm where nothing tells what they were, and says so
(docs/explanation/recovering.md)."""
_GAP = "gap in"
_ENTRY = struct.Struct(">iqii")


@dataclass
class Verdict:
    """The count of each fate, and in words what is wrong with the result."""

    fates: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unseen: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of messages that stand there with damage which nothing covers."""

    def add(self, text: str) -> None:
        self.wrong.append(text)
        self.fates["wrong"] += 1


@dataclass
class After:
    """A recovered store, read by its bytes: ``messages`` and ``records`` by place."""

    base: Base
    root: Path

    def __post_init__(self) -> None:
        log = self.base.log(self.root)
        self.start, self.messages = log.start, self.base.walk(log)
        self.broken: list[str] = []
        self.records: dict[int, Record] = {}
        for place, raw in self.messages.items():
            try:
                self.records[place] = decode(raw)
            except FormatError as error:
                self.broken.append(f"@{place}: {error}")
        self.rows = salvaging.rows_of(self.root)
        self.leads = {place: (key, offset, size) for key, rows in self.rows.items()
                      for offset, (place, size) in rows.items()}

    def index(self) -> list[tuple[int, int]]:
        """(hash, place) of every entry."""
        slots, fields = self.base.sizes.index_slots or 0, []
        for path in sorted((self.root / "index").glob("*")):
            data = path.read_bytes()
            count, = struct.unpack_from(">i", data, 36)
            fields += [_ENTRY.unpack_from(data, 40 + 4 * slots + 20 * number)[:2]
                       for number in range(1, count)]
        return fields


def is_marked(record: Record) -> bool:
    """Whether it is delivered with its damage, and says so."""
    return props.parse(record.properties.decode("utf-8", "replace")).get(MARK) == DAMAGED


def says_gap(plan: Plan) -> bool:
    """Whether the plan warns of rows that stand at other queue offsets, as a broker puts them."""
    return any(_GAP in note for note in plan.notes)


def judge(base: Base, damaged: Mapping[int, bytes | None], after: After, plan: Plan, *,
          theirs: Mapping[int, bytes] | None = None) -> Verdict:
    """The fate of each message of ``base``.

    ``damaged``: what the damage had left of each touched message, at its place (None: nothing).
    ``theirs``: messages of another log that the user preferred: they may stand there instead.
    """
    verdict = Verdict()
    verdict.fates["damaged"] = len(damaged)
    for text in after.broken:
        verdict.add(f"no record {text}")
    for place, raw in base.messages.items():
        now = after.messages.get(place)
        if theirs and now is not None and now != raw and now == theirs.get(place):
            verdict.fates["theirs"] += place in damaged
        elif place in damaged:
            fate = _fate(base, place, damaged[place], after, plan, verdict)
            verdict.fates[fate] += 1
            if fate in ("unseen", "near"):
                verdict.unseen.append((place, place + len(raw)))
        elif now != raw:
            _gone(place, now, plan, verdict, bool(theirs))
    _judge_others(base, after, verdict, theirs or {})
    _judge_rows(base, damaged, after, verdict, theirs or {}, says_gap(plan))
    _judge_index(base, after, verdict)
    verdict.fates = Counter({name: count for name, count in verdict.fates.items() if name})
    return verdict


def _gone(place: int, now: bytes | None, plan: Plan, verdict: Verdict, yields: bool) -> None:
    """An intact message that is no longer there."""
    if yields and any(action.action == "copy" for action in plan.actions):
        return  # the user said that the other log is right
    if plan.ambiguous and (now is None or is_filler(decode(now))):
        verdict.fates["left out"] += 1
        return
    verdict.add(f"intact message @{place} is " + ("gone" if now is None else "changed"))


def _fate(base: Base, place: int, was: bytes | None, after: After, plan: Plan,
          verdict: Verdict) -> str:
    """Of a damaged message. What is wrong is added to the verdict."""
    raw, record = base.messages[place], after.records.get(place)
    if record is not None and after.messages[place] == raw:
        return _way(plan.actions, place, len(raw))
    if record is None or is_filler(record):
        own = base.records[place]
        mine = [(key, offset) for key, rows in base.rows.items()
                for offset, (lead, _) in rows.items() if lead == place]
        there = any(is_filler(after.records[lead]) for key, offset in mine
                    if (lead := after.rows.get(key, {}).get(offset, (-1, 0))[0]) in after.records)
        return "filled" if there or (record is not None and own.topic == record.topic) else "lost"
    if is_marked(record):
        return "kept"
    if any(action.action in ("put back", "copy") and action.offset is not None
           and action.offset < place + len(raw) and place < action.offset + (action.length or 0)
           for action in plan.actions):
        was = after.messages[place]  # what the damage had left of it lay elsewhere
    return _changed(place, base.records[place], was, after.messages[place], record, verdict)


def _way(actions: Sequence[Action], place: int, size: int) -> str:
    """How a message came back."""
    ways = {action.action for action in actions if action.offset is not None
            and action.offset < place + size
            and place < action.offset + (action.length or 1)}
    return "copied" if "copy" in ways else "corrected" if "correct" in ways else "mended"


def _changed(place: int, mine: Record, was: bytes | None, now: bytes, record: Record,
             verdict: Verdict) -> str:
    """A message that stands there as a good one, with other bytes than it had."""
    differ = [name for name in Record.__dataclass_fields__
              if getattr(mine, name) != getattr(record, name)]
    if {*differ} & {"body", "total_size", "magic", "physical_offset", "body_crc"}:
        verdict.add(f"message @{place} has another {', '.join(differ)}")
        return ""
    if was is not None and now == was:
        return "unseen"
    before = None
    if was is not None:
        try:
            before = decode(was)
        except FormatError:
            before = None
    names = [name for name in differ if _is_made(name, was or b"", before, now, record)]
    if not {*names} <= {*HARMLESS}:
        verdict.add(f"message @{place}: {', '.join(names)} made what it never was")
        return ""
    return "near" if names else "unseen"


_FIXED = {"queue_id": (12, 16), "flag": (16, 20), "queue_offset": (20, 28)}


def _is_made(name: str, was: bytes, before: Record | None, now: bytes, record: Record) -> bool:
    """Whether a field is not as the damage left it."""
    if before is not None:
        return bool(getattr(before, name) != getattr(record, name))
    start, end = _FIXED.get(name, (0, len(now)))
    return was[start:end] != now[start:end]


def _judge_others(base: Base, after: After, verdict: Verdict, theirs: Mapping[int, bytes]) -> None:
    """Messages that nobody sent."""
    for place, record in after.records.items():
        if (place in base.messages or is_filler(record)
                or theirs.get(place) == after.messages[place]):
            continue
        verdict.add(f"a message @{place} that never was there: {record.topic!r} "
                    f"{record.queue_id} {record.queue_offset}")


def _judge_rows(base: Base, damaged: Mapping[int, bytes | None], after: After, verdict: Verdict,
                theirs: Mapping[int, bytes], gap: bool) -> None:
    """Every row leads to the message that had its queue offset, or to a filler."""
    for key, rows in after.rows.items():
        mine = base.rows.get(key, {})
        for offset, (place, size) in rows.items():
            record = after.records.get(place)
            if place < after.start:
                continue  # expired, or taken for it
            if record is None or len(after.messages[place]) != size:
                verdict.add(f"row {key} {offset} leads to no message at {place}")
            elif (after.messages[place] == base.messages.get(place)
                    and mine.get(offset) != (place, size)):
                if not gap:
                    verdict.add(f"row {key} {offset} leads to the message of another one, "
                                f"@{place}")
            elif is_filler(record) and offset not in mine and not theirs and mine:
                verdict.fates["invented"] += 1
    if theirs:
        return  # its rows are those of the other log
    for key, rows in base.rows.items():
        for offset, (place, size) in rows.items():
            if (place not in damaged and after.messages.get(place) == base.messages[place]
                    and after.rows.get(key, {}).get(offset) != (place, size)):
                if gap:
                    verdict.fates["misplaced"] += 1
                else:
                    verdict.add(f"no row {key} {offset} for the intact message @{place}")


def _judge_index(base: Base, after: After, verdict: Verdict) -> None:
    """Every entry leads to a message with a key of that hash, or one that had it before it was
    damaged.
    """
    for hash_, place in after.index():
        record = after.records.get(place)
        if place < after.start:
            continue
        if record is None:
            verdict.add(f"index entry leads to no message at {place}")
            continue
        if hash_ in _hashes(record):
            continue
        before = base.messages.get(place)
        if is_filler(record) or before is None or hash_ not in _hashes(decode(before)):
            verdict.add(f"index entry leads to another key's message at {place}")


def _hashes(record: Record) -> set[int]:
    values = props.parse(record.properties.decode("utf-8", "replace"))
    topic = record.topic.decode("utf-8", "replace")
    keys = [values.get(props.UNIQUE_KEY, ""), *values.get(props.KEYS, "").split(" ")]
    return {abs(java_hash(f"{topic}#{key}")) for key in keys if key}
