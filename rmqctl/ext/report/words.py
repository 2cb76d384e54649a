"""The verdict of a report, for who has never seen a commitlog: what was found, in plain sentences.

The figures are those of `rmqctl.checks.doctor`; ``say`` puts a sentence into the language of the
report, with values that are masked already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rmqctl.checks.doctor import Diagnosis
from rmqctl.ext.report.facts import Facts
from rmqctl.output.units import size_text

Say = Callable[..., str]
GOOD, WARN, BAD = "good", "warn", "bad"
_TOPICS = 4
_NAMED = 4
_REPAIRS = 3


class Headline(NamedTuple):
    """``tone``: one of `GOOD`, `WARN`, `BAD`."""

    tone: str
    text: str


class Part(NamedTuple):
    """A question a reader has, and the answer."""

    title: str
    sentences: list[str]


def headline(found: Diagnosis, say: Say) -> Headline:
    """The one line that has to be read."""
    start, lost = found.start, found.losses
    if found.sound and found.not_judged:
        return Headline(WARN, say("Sound as far as can be judged"))
    if found.sound and not lost.is_complete:
        return Headline(WARN, say("No damage now; messages were lost before"))
    if found.sound:
        return Headline(GOOD, say("Sound: nothing is damaged, nothing is lost"))
    gone = lost.known or lost.in_tier.messages
    if gone and lost.would_lose:
        return Headline(BAD, say("Messages are lost, and a start would lose more"))
    if gone:
        return Headline(BAD, say("Messages are lost"))
    if not start.starts:
        return Headline(BAD, say("A broker would not start on this store"))
    if not start.start_is_harmless:
        return Headline(BAD, say("Nothing is lost yet, but a start would lose messages")
                        if lost.would_lose else
                        say("Nothing is lost yet, but a start would lose topics, groups or "
                            "committed offsets") if start.metadata.losses else
                        say("Nothing is lost yet, but a start would do harm"))
    if found.findings.ok:
        return Headline(WARN, say("No damage, but something needs attention"))
    return Headline(WARN, say("Damaged, but no message is lost"))


def story(facts: Facts, say: Say, moment: Callable[[int], str]) -> list[Part]:
    """Return the parts of the story: what was checked, what is damaged, what is lost, what a start
    would do, who is affected, what to do.
    """
    found = facts.diagnosis
    return [
        Part(say("What was looked at"), _looked_at(facts, say, moment)),
        Part(say("What is wrong"), _wrong(facts, say)),
        Part(say("What is lost"), _lost(found, say, moment)),
        Part(say("What a start of the broker would do"), _start(found, say)),
        Part(say("Whom it concerns"), _concerned(found, say)),
        Part(say("What to do"), _to_do(found, say)),
    ]


def _looked_at(facts: Facts, say: Say, moment: Callable[[int], str]) -> list[str]:
    found, cover = facts.diagnosis, facts.diagnosis.findings.coverage
    if "commitlog" in found.not_judged:
        return [say("The commitlog lies in a form that this version of rmqctl does not read.")]
    if not cover.bytes_total:
        return [say("A broker keeps all messages in one log, the commitlog. This store has none.")]
    sentences = [say(
        "A broker keeps all messages in one log, the commitlog. All {size} of it were read, byte "
        "by byte, every checksum was computed, and consumequeues, index and the small files were "
        "held against it.", size=size_text(cover.bytes_total))]
    times = [row for row in facts.topics if row.first is not None and row.last is not None]
    if times:
        sentences.append(say(
            "It holds {count:,} intact message, stored at {first}.",
            "It holds {count:,} intact messages, stored between {first} and {last}.",
            count=cover.messages, first=moment(min(row.first or 0 for row in times)),
            last=moment(max(row.last or 0 for row in times))))
    else:
        sentences.append(say("It holds no message."))
    if found.lock.held:
        sentences.append(say("A process holds the store and may write to it: these are figures of "
                             "one moment."))
    return sentences


def _wrong(facts: Facts, say: Say) -> list[str]:
    found = facts.diagnosis
    cover, counts = found.findings.coverage, found.damaged
    sentences = []
    places = len(facts.marks) + facts.marks_left
    if cover.bytes_damaged and places:
        sentences.append(say(
            "{size} of the log, in one place, are not what was written.",
            "{size} of the log, in {count:,} places, are not what was written.",
            count=places, size=size_text(cover.bytes_damaged)))
    elif cover.bytes_damaged:
        sentences.append(say("{size} of the log are not what was written.",
                             size=size_text(cover.bytes_damaged)))
    elif not found.findings.ok and not cover.bytes_total:
        sentences.append(say("The log has no file, but other files of the store know of messages "
                             "in it."))
    elif not found.findings.ok and not facts.missing:
        sentences.append(say("No byte of the log is damaged, but it does not agree with what else "
                             "the store holds."))
    if facts.missing:
        sentences.append(say(
            "A file of the log is missing: {names}.",
            "{count:,} files of the log are missing: {names}.", count=len(facts.missing),
            names=_some([file.name for file in facts.missing], say)))
    if counts:
        kinds = len({row.category for row in counts})
        total = sum(row.count for row in counts)
        sentences.append(say(
            "{count:,} finding in all; each is explained below.",
            "{count:,} findings of {kinds} kinds in all; each kind is explained below.",
            count=total, kinds=kinds))
    if not found.start.starts:
        sentences.append(say("Something in the store keeps a broker from starting."))
    return sentences or [say("Nothing.")]


def _lost(found: Diagnosis, say: Say, moment: Callable[[int], str]) -> list[str]:
    # Begin with losses of the past: fillers, other losses, and what repairs dropped.
    start, account = found.start, found.losses
    count, replaced = account.known, account.all_replaced
    before = [say("{count:,} message was lost before, and a repair put a filler in its place.",
                  "{count:,} messages were lost before, and a repair put fillers in their place.",
                  count=replaced)] if replaced else []
    before += [say("Also lost: {cause}.", cause=str(loss.cause))
               for loss in account.beside[:_NAMED] if loss.already]
    lost = [loss for loss in account.in_repairs.losses if loss.total]
    if lost:
        before.append(say(
            "Repair {ids} dropped {count:,} message or undecided record.",
            "Repairs of the store ({ids}) dropped {count:,} messages or undecided records.",
            count=account.in_repairs.total, ids=", ".join(loss.id for loss in lost[-_REPAIRS:])))
    if account.in_tier.in_repairs:
        before.append(say("Also lost: {cause}.", cause=str(account.in_tier.repaired_in_words)))
    # An unreadable structure makes the number of lost messages unknown.
    if account.unread:
        return [*before, say("Whether messages are lost was not judged: {names} cannot be read.",
                             names=", ".join(account.unread))]
    if not count:
        return before or [say("No message is known to be lost.") if not start.positions_unclear else
                say("No message is known to be lost; of some positions it cannot be told.")]
    # State the number, then topics and time.
    sentences = [*before, say(
        "{count:,} message is gone from the log: other files of the store still know of it.",
        "{count:,} messages are gone from the log: other files of the store still know of them.",
        count=count)]
    if account.already_by_topic:
        sentences.append(say("By topic: {topics}.", topics=_ranked(account.already_by_topic, say)))
    if start.already_lost_from is not None and start.already_lost_to is not None:
        sentences.append(say("They were stored between {first} and {last}.",
                             first=moment(start.already_lost_from),
                             last=moment(start.already_lost_to)))
    return sentences


def _start(found: Diagnosis, say: Say) -> list[str]:
    # A broker that does not start changes nothing.
    start, lost = found.start, found.losses
    if not start.starts:
        return [say("A {version} broker would refuse to start.", version=start.broker_version)]
    # List what the start would cost in messages.
    sentences = []
    if lost.cut:
        sentences.append(say(
            "A {version} broker would cut the log off, and with it {count:,} message that is "
            "intact today.",
            "A {version} broker would cut the log off, and with it {count:,} messages that are "
            "intact today.", count=lost.cut, version=start.broker_version))
    if lost.without_entry:
        sentences.append(say(
            "{count:,} intact message would stay where no consumer finds it.",
            "{count:,} intact messages would stay where no consumer finds them.",
            count=lost.without_entry))
    if lost.cut_by_topic and lost.cut:
        sentences.append(say("By topic: {topics}.", topics=_ranked(lost.cut_by_topic, say)))
    if start.rows_lost:
        sentences.append(say(
            "A {version} broker would start with an empty log and delete all consume queues, which "
            "prove what is lost.", version=start.broker_version))
    # A start can also remove the evidence of earlier losses.
    if start.rows_cut and lost.known and not lost.would_lose:
        sentences.append(say(
            "A {version} broker would start and lose no intact message, but take away what still "
            "tells of the loss.", version=start.broker_version))
    if any(not loss.already for loss in start.beside_messages):
        sentences.append(say("A {version} broker would lose {what}: {cause}.",
                             version=start.broker_version, what=str(start.also_loses),
                             cause=_some([str(loss.cause) for loss in start.beside_messages
                                          if not loss.already], say)))
    # What else it costs; without any cost, say so.
    if not sentences and not start.start_is_harmless:
        sentences.append(say("A {version} broker would start, and do harm: {cause}.",
                             version=start.broker_version, cause=_some(
                                 [str(loss.cause) for loss in start.losses if not loss.already]
                                 or [str(found.verdict)], say)))
    return sentences or [say("A {version} broker would start, and lose nothing by it.",
                             version=start.broker_version)]


def _concerned(found: Diagnosis, say: Say) -> list[str]:
    # Say why there is nothing to report about consumer groups.
    consumers = found.start.consumers
    if consumers is None and "config" in found.not_judged:
        return [say("The positions of consumer groups lie in a form that is not read here.")]
    groups = {queue.group for queue in consumers.queues} if consumers is not None else ()
    if consumers is None or not groups:
        return [say("No consumer group has a position in this store.")]
    names = list(dict.fromkeys(queue.group for queue in consumers.affected))
    if not names:
        return [say("None of {count:,} consumer group is affected.",
                    "None of {count:,} consumer groups is affected.", count=len(groups))
                if consumers.complete else
                say("No consumer group is known to be affected.")]
    # Name the affected groups, then what each kind of damage means for them.
    sentences = [say("{count:,} of {groups:,} consumer groups is affected: {names}.",
                     "{count:,} of {groups:,} consumer groups are affected: {names}.",
                     count=len(names), groups=len(groups), names=_some(names, say))]
    affected = (found.losses.groups or {}).values()
    unread = sum(group.unread_lost for group in affected)
    at_risk = sum(group.at_risk for group in affected)
    twice = sum(queue.twice for queue in consumers.affected)
    for count, sentence in (
            (unread, say("{count:,} delivery will never come: the message is lost before it was "
                         "consumed.",
                         "{count:,} deliveries will never come: the messages are lost before they "
                         "were consumed.", count=unread)),
            (at_risk, say("{count:,} more would be missed after a start as the store is now.",
                          count=at_risk)),
            (twice, say("{count:,} message would be delivered a second time.",
                        "{count:,} messages would be delivered a second time.", count=twice))):
        if count:
            sentences.append(sentence)
    return sentences


def _to_do(found: Diagnosis, say: Say) -> list[str]:
    if found.sound:
        return [say("Nothing.")]
    sentences = []
    if found.lock.held:
        sentences.append(say("The store is in use: look again when nobody writes to it."))
    elif not found.start.start_is_harmless:
        sentences.append(say("Start no broker on this store."))
    sentences.append(say("Take a copy of the whole folder before anything is changed."))
    if found.next:
        sentences.append(say("Then go on with these commands, the safest first; none of them "
                             "changes anything as it stands:"))
    return sentences


def _ranked(topics: Mapping[str, int], say: Say) -> str:
    ordered = sorted(topics.items(), key=lambda item: (-item[1], item[0]))
    return _some([f"{topic} {count:,}" for topic, count in ordered], say)


def _some(names: list[str], say: Say) -> str:
    shown = say(", ").join(names[:_NAMED])
    if len(names) <= _NAMED:
        return shown
    return say("{names} and {count:,} more", names=shown, count=len(names) - _NAMED)
