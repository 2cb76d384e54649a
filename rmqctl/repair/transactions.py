"""``transactions commit`` and ``rollback``: append the messages that a broker appends after the
producer's answer.

A commit appends the message to its topic. Both commit and rollback append an op message that names
the half messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Literal

from rmqctl.broker.transactions import OP_BYTES
from rmqctl.checks.transactions import ANSWERED, OPEN, Transaction, transactions, was_ended
from rmqctl.checks.verify.common import plural
from rmqctl.engine.put.message import Outgoing
from rmqctl.engine.put.transactions import committed, op_message, target
from rmqctl.errors import RefusedError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Plan
from rmqctl.repair.putting import Puts
from rmqctl.repair.scratch import Scratch
from rmqctl.store.problems import Problem
from rmqctl.store.store import Store

End = Literal["commit", "rollback"]


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """The transactions to end: those with one of the ``ids``. Without ids, all that a broker still
    checks, limited by two conditions:

    ``group``: only those of this producer group.
    ``older_than``: only those older than this number of ms.
    """

    ids: frozenset[str] = frozenset()
    older_than: int | None = None
    group: str | None = None

    def takes(self, transaction: Transaction, now: int) -> bool:
        if self.group not in (None, transaction.group):
            return False
        if self.ids:
            return bool(self.ids & transaction.ids)
        age = transaction.age(now)
        return transaction.state in OPEN and (
            self.older_than is None or (age is not None and age > self.older_than))


@dataclass(frozen=True, slots=True)
class Ended:
    """A plan. ``ended``: transactions that the plan ends. ``left``: the others, each with the
    reason.
    """

    plan: Plan
    ended: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)


def plan_end(store: Store, end: End, wanted: TransactionFilter, clock: Callable[[], int],
             scratch: Scratch) -> Ended:
    """Return the plan for an opened store.

    Raises: RefusedError for an unknown id, or if the store must first be repaired;
    UnsupportedError, StoreIOError.
    """
    # The selected transactions.
    now, problems = clock(), list[Problem]()
    chosen = [transaction for transaction in transactions(store, now, problems.append)
              if wanted.takes(transaction, now)]
    others = wanted.ids.difference(*(transaction.ids for transaction in chosen))
    unknown = [msg_id for msg_id in sorted(others) if not was_ended(store, msg_id)]
    if unknown:
        raise RefusedError(f"{store.root}: no transaction has the id {unknown[0]}")
    done = [f"{plural(len(others), 'transaction had', 'transactions had')} ended already"] * bool(
        others)
    fault = next((problem for problem in problems if problem.is_fault), None)
    if fault is not None:
        raise RefusedError(f"{store.root}: {fault.text}; op messages may be missing, so no "
                           "transaction is ended. Run `rmqctl recover` first")
    if not chosen:
        return Ended(Plan(f"transactions-{end}", store.root, notes=tuple(done)))
    # The messages that a broker would put; transactions whose messages it rejects are left.
    configuration, refused = configured(store, {}), dict[int, str]()
    while True:
        puts = Puts(store, configuration, scratch, clock)
        left, ended, messages = [], list[Transaction](), list[Outgoing]()
        for number, transaction in enumerate(chosen):
            message, reason = _message(puts, end, transaction)
            reason = refused.get(number, reason)
            if reason:
                left.append({**transaction.as_dict(now), "reason": reason})
                continue
            ended.append(transaction)
            messages += [message] if message else []
        why = "committed" if end == "commit" else "rolled back"
        results = puts.put([*messages, *_ops(ended, puts, now)], (
            f"{plural(len(ended), 'transaction is', 'transactions are')} {why}"))
        if all(result.stored for result in results):
            break
        bad = {chosen.index(transaction): f"a broker rejects the message: {result.reason}"
               for transaction, result in zip(ended, results, strict=False)
               if end == "commit" and not result.stored}
        if not bad:
            raise RefusedError(f"{store.root}: {results[-1].reason}")
        refused |= bad
    shown = [{**transaction.as_dict(now), "committed_offset": None} for transaction in ended]
    for row, result in zip(shown if end == "commit" else [], results, strict=False):
        row["committed_offset"] = result.physical_offset
    notes = [*configuration.notes, *puts.notes, *done]
    if left:
        notes.append(f"{plural(len(left), 'transaction')} not ended: {left[0]['reason']}")
    return Ended(Plan(f"transactions-{end}", store.root, tuple(puts.actions), tuple(puts.steps),
                      notes=tuple(notes)), shown, left)


def _message(puts: Puts, end: End, transaction: Transaction) -> tuple[Outgoing | None, str]:
    """Return (the message that a commit appends, or None; the reason why the transaction cannot be
    ended, or "").
    """
    record = None if transaction.record is None else puts.store.log.record_at(
        transaction.record.physical_offset)
    if record is None:
        return None, "its half message is not in the log"
    if transaction.state == ANSWERED and end == "commit":
        return None, ("another of its half messages was ended; it is unknown whether by a commit "
                      "or by a rollback")
    if end == "rollback":
        return None, ""
    if record.crc_ok is False:
        return None, "the body of its half message does not match its CRC"
    message = committed(record, transaction.properties, puts.settings)
    place = target(transaction.properties)
    if message is None or place is None:
        return None, "its half message names no topic and queue"
    if puts.topics.exists and puts.topics.get(place[0]) is None:
        return None, f"config/topics.json has no topic {place[0]}"
    return message, ""


def _ops(ended: Iterable[Transaction], puts: Puts, now: int) -> Iterable[Outgoing]:
    """Yield the op messages. In 5.x, an op message names many half messages of a queue; before 5.x,
    only one.
    """
    by_queue: dict[int, list[Transaction]] = {}
    for transaction in ended:
        by_queue.setdefault(transaction.queue_id, []).append(transaction)
    for queue_id, of_queue in by_queue.items():
        record = of_queue[0].record
        assert record is not None
        offsets = [offset for transaction in of_queue for offset in transaction.offsets]
        if puts.settings.profile.generation < 5:
            bodies = [str(offset) for offset in offsets]
        else:
            bodies = [""]
            for offset in offsets:
                if len(bodies[-1]) > OP_BYTES:
                    bodies.append("")
                bodies[-1] += f"{offset},"
        for body in bodies:
            yield op_message(body, puts.settings, now, record.store_host, queue_id)
