"""Recommended next steps for a store, in order, and problems that no command repairs.

A step is offered only if it would change something (`RepairOutlook`). No step loses data that the
previous step kept, so the order is:

* restoring from another copy
* repairing the store without a copy (at the end of the log, truncation before fillers)
* consumer offsets
* commands that only read
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rmqctl import vfs
from rmqctl.checks.losses import GROUPS, MESSAGES, OFFSETS, TIMERS, TOPICS
from rmqctl.checks.metadata.judge import commands
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.checks.preflight.types import Prediction

Effect = Literal["read-only", "reversible", "irreversible"]
"""Effect of running a command. `undo` reverts the effect of a "reversible" command."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A recommended command, the reason for it, and its effect.

    ``loses``: what the command loses, as numbers: ``messages`` are replaced by fillers, and
    ``undecided`` records are discarded.
    """

    command: str
    why: Phrase
    effect: Effect = "read-only"
    loses: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"command": self.command, "why": self.why, "effect": self.effect,
                "loses": dict(self.loses)}


def is_of_a_tier(command: str | None) -> bool:
    """Return whether a command repairs tiered storage."""
    return command is not None and command.startswith("rmqctl tiered recover ")


def of_the_tier(findings: Iterable[Finding]) -> Iterator[NextStep]:
    """Yield a step for each command that repairs the store's tier and that a finding recommends."""
    for command in dict.fromkeys(finding.next for finding in findings
                                 if finding.is_trouble and finding.next):
        if is_of_a_tier(command):
            yield NextStep(command, Phrase(
                "shows the plan of a repair of the tier; --apply carries it out, `undo` reverts "
                "it"), "reversible")


@dataclass(frozen=True, slots=True)
class Remaining:
    """The findings of one category that no command repairs. ``count``: their number; ``why``: what
    to do by hand.
    """

    category: str
    count: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"category": self.category, "count": self.count, "why": self.why}


class DamagedTail(NamedTuple):
    """Damage from physical offset ``start`` to the end of the log. ``lost``: number of messages in
    the damaged range.
    """

    start: int
    lost: int

    def truncated(self, root: str) -> NextStep:
        """Return the step that truncates the log at ``start``; ``root`` is quoted for a shell."""
        return NextStep(f"rmqctl truncate {root} --to-phy {self.start}", Phrase(
            "truncates the damaged end of the log: {count:,} message lost there gets no filler",
            "truncates the damaged end of the log: {count:,} messages lost there get no fillers",
            count=self.lost), "reversible", {"messages": self.lost} if self.lost else {})


@dataclass(frozen=True, slots=True)
class RepairOutlook:
    """The effect of `recover` on a store in its current state.

    * ``changes``: whether `recover` changes anything
    * ``lost``: number of messages that `recover` replaces by fillers or drops
    * ``undecided``: number of records about which the user has to decide
    * ``undo_first``: ID of an earlier repair to undo first, because only `undo` restores the data
      that it moved aside
    * ``refused``: the reason why `recover` makes no plan
    * ``is_member``: whether the log belongs to a DLedger member, which is repaired from another
      member
    * ``truncate_to``: the end of the log, if truncating the log files at this offset helps and
      loses no message
    * ``form_unproven``: whether the user has to choose the format of the new consume queues
    * ``tail``: the damaged end of the log, if it can be truncated instead of filled
    * ``groups_beyond``: groups with an offset beyond the end of its queue after the repair; None if
      unknown
    """

    changes: bool = False
    lost: int = 0
    undecided: int = 0
    undo_first: str | None = None
    refused: str | None = None
    is_member: bool = False
    truncate_to: int | None = None
    form_unproven: bool = False
    groups_beyond: frozenset[str] | None = None
    tail: DamagedTail | None = None

    @property
    def is_possible(self) -> bool:
        """Return whether any rmqctl command improves the store."""
        return bool(self.changes or self.undo_first or self.truncate_to is not None)


CONFIGURATION = Phrase("shows what to correct in the broker's configuration file")
_COPY = Phrase("if a replica, a backup or another disk has these messages: restores them from it")
_MEMBER = Phrase("restores the log from another member of the DLedger group")
_UNDO = Phrase("an earlier repair moved parts of the log aside; this restores them first")
_PLAN = Phrase("shows the plan of a repair; --apply carries it out, `undo` reverts it")
_FINDINGS = Phrase("lists every finding with its location")
_KEEP = Phrase("treats undecided records as messages: right unless senders put copies of records "
               "into message bodies")
_LEAVE_OUT = Phrase("discards undecided records, which may be part of a message body")
_FORMS = {
    " --consumequeue file": Phrase("creates the consume queues as files (storeType=default)"),
    " --consumequeue rocksdb": Phrase(
        "creates the consume queues in RocksDB (storeType=defaultRocksDB)")}
_TRUNCATE = Phrase("removes entries for messages beyond the end of the log; loses no message")
_BEYOND = Phrase("moves offsets that are beyond the end of a queue back to its end; skips no "
                 "unread message")
_IN_ROCKSDB = Phrase(
    "topics are in RocksDB, which rmqctl does not change: once the broker runs, use `mqadmin "
    "updateTopic` (-r: read queues, -w: write queues, -p: perm)")
_GAPS = Phrase(
    "the log lacks messages of the queue, or has two with the same queue offset, so a consume "
    "queue cannot contain all of them: restore the log from a copy (`rmqctl recover --from COPY`); "
    "`rmqctl read` shows the remaining messages")
_INDEX = Phrase(
    "index entry and message contradict each other and nothing proves which one is damaged: "
    "compare with a replica")
_SHAPE = Phrase(
    "unknown number of index slots and entries: pass --index-slots and --index-max (the broker's "
    "maxHashSlotNum and maxIndexNum, by default 5000000 and 20000000), or --broker-conf, to "
    "`rmqctl recover`")
_BY_HAND: dict[str, Phrase] = {
    "message-fields": Phrase(
        "if another message has the same queue offset, consumers never get this message: read it "
        "with `rmqctl query offset`, and send it again if it is still needed. If the folder of a "
        "consume queue was renamed or copied, move the wrong folder out of the store while no "
        "broker runs"),
    "epoch-file": Phrase(
        "epochs cannot be rebuilt from the log: copy epochFileCheckpoint from a replica of the "
        "same log"),
    "epoch-start": Phrase(
        "epochs cannot be rebuilt from the log: copy epochFileCheckpoint from a replica of the "
        "same log"),
    "file-unreadable": Phrase(
        "the file cannot be opened: check its permissions and what it is (a directory, a link, a "
        "bad sector), restore it from a copy, then run `rmqctl doctor` again"),
    "small-file": Phrase(
        "compare the file with a copy. While no broker runs, you may move the file lock, or the "
        "epoch file of a replica, out of the store: a broker recreates them. Do not move the file "
        "abort"),
    "dledger-checkpoint": Phrase(
        "move the file away while no broker runs, or replace it with its copy checkpoint.bak: "
        "DLedger writes it again, and nothing is lost"),
    "config-database": Phrase(
        "the log does not contain topics, groups and offsets: restore the folder from a copy of "
        "the store"),
    "compaction": Phrase(
        "brokers do not rebuild the compaction log: restore the folder compaction/ from a copy of "
        "the store; `rmqctl read` shows the messages that are in the commit log"),
    "file-missing": Phrase(
        "this store cannot provide the content of the file: restore it from a copy of the store"),
    "log-start": Phrase(
        "the first log files were deleted by hand or lost, and only a copy has their messages. "
        "Without a copy nothing needs to be done: a broker deletes the entries a minute after its "
        "start"),
    "config-read-queues": _IN_ROCKSDB,
    "config-topic": _IN_ROCKSDB,
    "config-backup": Phrase(
        "brokers read the .bak file, or start with an empty table if it is missing, and rewrite "
        "the file: restore the file from a copy if its content matters"),
    "property-damaged": Phrase(
        "consumers receive the message with its intact body. Its properties cannot be restored, "
        "and the record has no space for a mark; a replica may have the message"),
    "config-oddity": Phrase(
        "part of the file has the wrong format: correct it by hand while no broker runs, or "
        "restore it from a copy"),
    "cq-out-of-order": _GAPS,
    "cq-behind": _GAPS,
    "cq-gap": _GAPS,
    "cq-wrong-tag": Phrase(
        "entry and message contradict each other and nothing proves which one is damaged: a "
        "consumer with a tag filter may miss the message; compare with a replica"),
    "index-unreadable": _SHAPE, "index-missing": _SHAPE,
    "index-entry": _INDEX, "index-key-missing": _INDEX,
}
_OFFSETS_GONE = Phrase(
    "this store does not show how far groups had read: restore config/consumerOffset.json from a "
    "copy, set offsets with `rmqctl offsets reset` (--topic, --time), or accept consumeFromWhere")
_FROM_COPY = " --from COPY"
"""Last option of each command that needs another copy of the store; the user replaces COPY. Such
commands are recommended first.
"""
_RESTORED = ".restored"
"""Suffix of the name of the folder that a remote or archived store is copied into."""
_OF_A_HEADER = Phrase(
    "no broker writes this value, and the right one is unknown: `recover` leaves it, and "
    "consumers get the message; compare with a replica if the field matters")
_OF_A_TIER = Phrase(
    "the tier cannot provide the content of this file: restore it from a copy of the tier")
_OF_A_MEMBER = Phrase("only another member of the DLedger group has these bytes: pass --from")


def steps(root: str, start: Prediction, outlook: RepairOutlook | None, *, is_held: bool,
          is_damaged: bool) -> Iterator[NextStep]:
    """Yield the steps for a store that is not sound.

    * ``outlook``: None if no repair was planned; a repair is then offered if `recover` can plan one
    * ``is_held``: whether a broker uses the store
    * ``is_damaged``: whether `verify` finds damage
    """
    if start.misled:
        yield NextStep(start.look_at_configuration(root), CONFIGURATION)
    root = shlex.quote(root)
    judged = not start.not_judged or start.broker.unopened  # what cannot be opened is rebuilt
    if start.misled and not is_damaged:
        judged = False  # the files are intact
    outlook = outlook or RepairOutlook(changes=start.mendable and (is_damaged or start.recovers))
    yield from of_the_machine(start, root)
    if judged and not is_held and not is_damaged:
        yield from of_the_queues(start, root)
    if judged and not is_held:
        repairs = [*_repairs(root, outlook, lost=start.account.known_lost)]
        printed = {step.command for step in repairs}
        if outlook.refused is not None:
            printed.add(f"rmqctl recover {root}")
        further = [step for step in of_metadata(start, root) if step.command not in printed]
        yield from (step for step in further if step.command.endswith(_FROM_COPY))
        yield from repairs
        yield from (step for step in further if not step.command.endswith(_FROM_COPY))
        beyond = {offset.group for offset in start.consumers.beyond_end}
        if outlook.groups_beyond is not None:  # a startup would truncate what a repair keeps
            beyond &= outlook.groups_beyond
        yield from to_the_end(root, beyond)
    # Data that an older broker does not read.
    exports = [loss.exportable for loss in start.other_losses if loss.exportable]
    for number, words in enumerate(exports, 1):
        out = f"messages-{number}.jsonl" if len(exports) > 1 else "messages.jsonl"
        yield NextStep(f"rmqctl export {root} {words} --out {out}", Phrase(
            "saves the messages of the topic that a {version} broker does not read",
            version=start.broker_version))
    if exports and not is_held:
        yield NextStep(f"rmqctl convert {root} --for {start.broker_version}", Phrase(
            "shows what such a broker can keep; --apply prepares the store for it"), "reversible")
    if any(loss.what == TIMERS for loss in start.other_losses):
        yield NextStep(f"rmqctl timers list {root}", Phrase(
            "lists the timed messages with topic and keys: send again those that are lost and "
            "still needed"))
    if is_damaged:
        yield NextStep(f"rmqctl verify {root}", _FINDINGS)
    if start.consumers.groups is not None and start.consumers.groups.groups_affected:
        yield NextStep(f"rmqctl impact {root}", Phrase("shows which groups miss which messages"))
    if not start.harmless:
        yield NextStep(f"rmqctl preflight {root}",
                       Phrase("shows what a broker would do at startup, file by file"))


def with_backup(planned: Sequence[NextStep], root: str, backup: str, when: int,
                damages: int) -> list[NextStep]:
    """Return the planned steps, with the backup instead of the placeholder COPY.

    ``when``: time of the backup in epoch ms.
    ``damages``: number of damaged ranges that the store had at that time. If there were any,
    the same bytes may be missing from the backup, so restoring from it comes after other repairs.
    """
    if not planned:
        return []
    copy = f"rmqctl recover {shlex.quote(root)}{_FROM_COPY}"
    others = [step for step in planned if not step.command.endswith(_FROM_COPY)]
    words = Phrase("restores what is lost or damaged from the backup of {time}",
                   time=time_text(when))
    if not damages:
        at = 0
    else:
        at = next((number for number, step in enumerate(others) if step.effect == "read-only"),
                  len(others))
        words = Phrase("restores what the backup of {time} has; the store was already damaged "
                       "then ({damages})", time=time_text(when),
                       damages=counted(damages, "damaged range"))
    return [*others[:at], NextStep(copy.replace("COPY", shlex.quote(backup)), words, "reversible"),
            *others[at:]]


def into_a_folder(root: str) -> tuple[str, list[NextStep]]:
    """Return a local folder for a store at a URL or in an archive, and the step that copies the
    store.
    """
    copy = vfs.stem(root) + _RESTORED
    return copy, [NextStep(f"rmqctl restore {shlex.quote(root)} {shlex.quote(copy)}", Phrase(
        "copies the store into a local folder: only local stores can be repaired"))]


def with_next(start: Prediction, root: str) -> dict[str, Any]:
    """Return the JSON document of a prediction. Its next step, if any, only reads or shows a
    plan.
    """
    step = _after(start, root)
    return {**start.as_dict(), "next": [step.command] if step else [],
            "steps": [step.as_dict()] if step else []}


def _after(start: Prediction, root: str) -> NextStep | None:
    """Return the step to take after a prediction; None if nothing needs to be done."""
    if start.misled:
        return NextStep(start.look_at_configuration(root), CONFIGURATION)
    is_elsewhere, root = vfs.is_remote(root), shlex.quote(root)
    if start.broker.unopened and not is_elsewhere:
        return NextStep(f"rmqctl recover {root}", _PLAN, "reversible")
    if not start.not_judged and start.harmless:
        return None
    if not start.recovers and not start.not_judged:
        return next(of_the_machine(start, root), None)
    if start.not_judged or not start.mendable:  # `recover` plans nothing for such a store
        return NextStep(f"rmqctl verify {root}", _FINDINGS)
    cure = None if is_elsewhere else next(of_metadata(start, root), None)
    if start.starts and cure is not None and all(
            loss.what != MESSAGES or loss in start.metadata.losses for loss in start.losses):
        return cure
    if start.start_is_harmless and not (start.account.known_lost or start.log.undecodable):
        # Nothing but offsets beyond the end of a queue, which `recover` does not change.
        groups = [offset.group for offset in start.consumers.beyond_end if offset.group]
        if groups and not is_elsewhere:
            return next(to_the_end(root, groups[:1]))
    return NextStep(f"rmqctl doctor {root}", Phrase(
        "shows what the damage means and which repair helps"))


def of_the_form(root: str) -> NextStep:
    """Return the step that determines which consume queues a broker reads.

    The store has consume queues in files and in RocksDB.
    """
    return NextStep(f"rmqctl doctor {shlex.quote(root)} --broker-conf FILE", Phrase(
        "storeType in the broker's configuration file determines which consume queues it reads"))


def to_the_end(root: str, groups: Iterable[str]) -> Iterator[NextStep]:
    """Yield the steps that move consumer offsets of these groups back to the end of their
    queues.
    """
    for group in sorted(group for group in groups if group):
        yield NextStep(f"rmqctl offsets reset {root} --group {shlex.quote(group)} --beyond-end",
                       _BEYOND, "reversible")


def of_the_queues(start: Prediction, root: str) -> Iterator[NextStep]:
    """Yield the step that converts consume queues to the format that broker.conf selects.

    No step is needed if the broker would rebuild all of them.
    """
    for setting in start.broker.configuration:
        if (setting.setting == "storeType" and setting.effect == "differs"
                and start.queues.unreachable):
            form = "rocksdb" if (setting.value or "").casefold() == "defaultrocksdb" else "file"
            yield NextStep(f"rmqctl convert {root} --consumequeue {form}", Phrase(
                "converts all consume queues to the form that broker.conf requires"),
                "reversible")


def of_the_machine(start: Prediction, root: str) -> Iterator[NextStep]:
    """Yield the steps that show or prevent losses which are not caused by damage to the store."""
    if not start.runs_well:
        yield NextStep(f"rmqctl du {root}", Phrase("shows which files use the disk"))
    if any(loss.what in (TOPICS, GROUPS, OFFSETS) and loss.by_hand is None
           for loss in start.other_losses):
        yield NextStep(f"rmqctl config convert {root} --to json",
                       Phrase("writes the configuration as the JSON files that this release reads"),
                       "reversible")


def of_metadata(start: Prediction, root: str) -> Iterator[NextStep]:
    """Yield the steps that restore topics, groups and committed offsets."""
    for command in commands(start.metadata.defects):
        yield NextStep(
            command.replace("STORE", root, 1), _PLAN if command.startswith("rmqctl recover ") else
            Phrase("immediately sets readQueueNums, so consumers read all queues of the topic")
            if "--read-queues" in command and "--write-queues" not in command else
            Phrase("immediately recreates the topic's configuration, so clients can use the topic"),
            "reversible")
    if any(defect.category == "log-start" for defect in start.metadata.defects):
        yield NextStep(f"rmqctl recover {root}{_FROM_COPY}", _COPY, "reversible")
    elif any(defect.command is None and defect.loss.what == OFFSETS
             for defect in start.metadata.defects):
        yield NextStep(f"rmqctl recover {root}{_FROM_COPY}", Phrase(
            "a copy of the store or of its config folder has the committed offsets"), "reversible")


def _repairs(root: str, outlook: RepairOutlook, *, lost: int) -> Iterator[NextStep]:
    """Yield the possible repairs: first those that use another copy, then those that need only this
    store.
    """
    if outlook.undo_first is not None:
        yield NextStep(f"rmqctl undo {root} {outlook.undo_first}", _UNDO, "reversible")
        return
    if outlook.is_member and (outlook.refused or outlook.lost):
        yield NextStep(f"rmqctl recover {root} --from MEMBER", _MEMBER, "reversible")
    elif outlook.lost or outlook.undecided or lost:
        yield NextStep(f"rmqctl recover {root}{_FROM_COPY}", _COPY, "reversible")
    if outlook.tail is not None:
        yield outlook.tail.truncated(root)
    loses = {"messages": outlook.lost} if outlook.lost else {}
    forms = _FORMS if outlook.form_unproven else ("",)
    if outlook.undecided:
        for form in forms:
            yield NextStep(f"rmqctl recover {root}{form} --ambiguous keep", _KEEP, "reversible",
                           loses)
            yield NextStep(f"rmqctl recover {root}{form} --ambiguous leave-out", _LEAVE_OUT,
                           "reversible", {**loses, "undecided": outlook.undecided})
    elif outlook.form_unproven:
        for form, why in _FORMS.items():
            yield NextStep(f"rmqctl recover {root}{form}", why, "reversible", loses)
    elif outlook.changes:
        yield NextStep(f"rmqctl recover {root}", _PLAN, "reversible", loses)
    elif outlook.truncate_to is not None:
        yield NextStep(f"rmqctl truncate {root} --to-phy {outlook.truncate_to}", _TRUNCATE,
                       "reversible")


def remains(damaged: Sequence[tuple[str, int]], start: Prediction,
            outlook: RepairOutlook | None) -> list[Remaining]:
    """Return the problems that no rmqctl command repairs.

    ``damaged``: pairs of a category and its number of findings. These are ignored if a repair is
    possible or no repair was planned.
    """
    by_hand = {(loss.what, str(loss.by_hand)): Remaining(loss.what, loss.count or 1, loss.by_hand)
               for loss in start.other_losses if loss.by_hand is not None and not loss.already}
    return [*_on_the_disk(start), *by_hand.values(), *_beside(damaged, start, outlook)]


def _of_kind(category: str) -> Phrase:
    if category.startswith("tiered-"):
        return _OF_A_TIER
    if category.startswith("header-"):
        return _OF_A_HEADER
    return Phrase(
        "this store does not contain what a repair needs; a replica or a backup may (`recover "
        "--from COPY`). `rmqctl explain {category}` explains the finding", category=category)


def _on_the_disk(start: Prediction) -> Iterator[Remaining]:
    """Yield remedies for a full disk; none of them deletes files that the broker would keep."""
    disk = start.broker.disk
    if start.runs_well or disk is None or disk.used_ratio is None:
        return
    limit = min(disk.clean_ratio, disk.refuse_ratio)
    yield Remaining("disk", 1, Phrase(
        "free at least {share:.0%} of the disk before a broker starts, or move the store to a "
        "larger disk: over {clean:.0%} the broker deletes the oldest log files, over {refuse:.0%} "
        "it rejects messages", share=disk.used_ratio - limit, clean=disk.clean_ratio,
        refuse=disk.refuse_ratio))


def _beside(damaged: Sequence[tuple[str, int]], start: Prediction,
            outlook: RepairOutlook | None) -> list[Remaining]:
    if outlook is None or outlook.is_possible:
        return []
    if outlook.is_member:
        return [Remaining(category, count, _BY_HAND.get(category, _OF_A_MEMBER))
                for category, count in damaged]
    offsets_gone = any(defect.command is None and defect.loss.what == OFFSETS
                       for defect in start.metadata.defects)
    by_hand = {**_BY_HAND, **({"config-unreadable": _OFFSETS_GONE, "config-emptied": _OFFSETS_GONE}
                              if offsets_gone else {})}
    remaining = [Remaining(category, count, by_hand.get(
        category, _of_kind(category))) for category, count in damaged
        if outlook.refused is None or category in by_hand or category.startswith("tiered-")]
    if outlook.refused is not None:
        remaining.insert(0, Remaining("refused", 1, outlook.refused))
    if not remaining and (lost := start.account.known_lost):
        remaining.append(Remaining("messages", lost, Phrase(
            "this store cannot restore the messages: use a replica or a backup (`rmqctl recover "
            "--from COPY`), or start the broker without them")))
    return remaining
