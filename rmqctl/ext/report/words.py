"""The verdict of a report in plain sentences, for readers who have never seen a commitlog.

The numbers come from `rmqctl.checks.doctor`; ``say`` translates a sentence into the language of the
report, with masked values.
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
    """The headline of a report. ``tone``: `GOOD`, `WARN` or `BAD`."""

    tone: str
    text: str


class StoryPart(NamedTuple):
    """A reader's question (the title), and the sentences that answer it."""

    title: str
    sentences: list[str]


def headline(diagnosis: Diagnosis, say: Say) -> Headline:
    """Return the headline of the report."""
    start, lost = diagnosis.start, diagnosis.losses
    if diagnosis.sound and diagnosis.not_judged:
        return Headline(WARN, say("No damage found; not everything could be checked"))
    if diagnosis.sound and not lost.is_complete:
        return Headline(WARN, say("No damage now; messages were lost before"))
    if diagnosis.sound:
        return Headline(GOOD, say("Sound: nothing is damaged, nothing is lost"))
    gone = lost.known_lost or lost.in_tier.messages
    if gone and lost.would_lose:
        return Headline(BAD, say("Messages are lost, and starting a broker would lose more"))
    if gone:
        return Headline(BAD, say("Messages are lost"))
    if not start.starts:
        return Headline(BAD, say("A broker would not start on this store"))
    if not start.start_is_harmless:
        return Headline(BAD, say("Nothing is lost yet, but starting a broker would lose messages")
                        if lost.would_lose else
                        say("Nothing is lost yet, but starting a broker would lose topics, "
                            "groups or committed offsets") if start.metadata.losses else
                        say("Nothing is lost yet, but starting a broker would do harm"))
    if diagnosis.findings.ok:
        return Headline(WARN, say("No damage, but something needs attention"))
    return Headline(WARN, say("Damaged, but no message is lost"))


def story(facts: Facts, say: Say, moment: Callable[[int], str]) -> list[StoryPart]:
    """Return the parts of the report's text, from what was checked to what to do."""
    diagnosis = facts.diagnosis
    return [
        StoryPart(say("What was checked"), _looked_at(facts, say, moment)),
        StoryPart(say("What is wrong"), _wrong(facts, say)),
        StoryPart(say("What is lost"), _lost(diagnosis, say, moment)),
        StoryPart(say("What a broker would do at startup"), _start(diagnosis, say)),
        StoryPart(say("Who is affected"), _concerned(diagnosis, say)),
        StoryPart(say("What to do"), _to_do(diagnosis, say)),
    ]


def _looked_at(facts: Facts, say: Say, moment: Callable[[int], str]) -> list[str]:
    diagnosis, cover = facts.diagnosis, facts.diagnosis.findings.coverage
    if "commitlog" in diagnosis.not_judged:
        return [say("This version of rmqctl does not support the layout of the commitlog.")]
    if not cover.bytes_total:
        return [say("A broker keeps all messages in one log, the commitlog. This store has none.")]
    sentences = [say(
        "A broker keeps all messages in one log, the commitlog. All {size} of it were read, "
        "every checksum was verified, and consume queues, index and the small files were checked "
        "against it.", size=size_text(cover.bytes_total))]
    times = [row for row in facts.topics if row.first is not None and row.last is not None]
    if times:
        sentences.append(say(
            "It contains {count:,} intact message, stored at {first}.",
            "It contains {count:,} intact messages, stored between {first} and {last}.",
            count=cover.messages, first=moment(min(row.first or 0 for row in times)),
            last=moment(max(row.last or 0 for row in times))))
    else:
        sentences.append(say("It contains no message."))
    if diagnosis.lock.held:
        sentences.append(say("A process holds the store and may be writing to it, so these "
                             "numbers are a snapshot."))
    return sentences


def _wrong(facts: Facts, say: Say) -> list[str]:
    diagnosis = facts.diagnosis
    cover, counts = diagnosis.findings.coverage, diagnosis.damaged
    sentences = []
    places = len(facts.marks) + facts.marks_left
    if cover.bytes_damaged and places:
        sentences.append(say(
            "{size} of the log are damaged, in one place.",
            "{size} of the log are damaged, in {count:,} places.",
            count=places, size=size_text(cover.bytes_damaged)))
    elif cover.bytes_damaged:
        sentences.append(say("{size} of the log are damaged.",
                             size=size_text(cover.bytes_damaged)))
    elif not diagnosis.findings.ok and not cover.bytes_total:
        sentences.append(say("The log has no files, but other files of the store refer to "
                             "messages in it."))
    elif not diagnosis.findings.ok and not facts.missing:
        sentences.append(say("No byte of the log is damaged, but other files of the store do not "
                             "match it."))
    if facts.missing:
        sentences.append(say(
            "A log file is missing: {names}.",
            "{count:,} log files are missing: {names}.", count=len(facts.missing),
            names=_some([file.name for file in facts.missing], say)))
    if counts:
        kinds = len({row.category for row in counts})
        total = sum(row.count for row in counts)
        sentences.append(say(
            "{count:,} finding in all; each is explained below.",
            "{count:,} findings of {kinds} kinds in all; each kind is explained below.",
            count=total, kinds=kinds))
    if not diagnosis.start.starts:
        sentences.append(say("A problem in the store prevents a broker from starting."))
    return sentences or [say("Nothing.")]


def _lost(diagnosis: Diagnosis, say: Say, moment: Callable[[int], str]) -> list[str]:
    # Begin with losses of the past: fillers, other losses, and what repairs dropped.
    start, account = diagnosis.start, diagnosis.losses
    count, replaced = account.known_lost, account.all_replaced
    before = [say("{count:,} message was lost earlier; a repair replaced it with a filler.",
                  "{count:,} messages were lost earlier; a repair replaced them with fillers.",
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
        return [*before, say("It is unknown whether messages are lost: {names} cannot be read.",
                             names=", ".join(account.unread))]
    if not count:
        return before or [say("No message is known to be lost.") if not start.consumers.unclear else
                say("No message is known to be lost; some consumer offsets are inconclusive.")]
    # State the number, then topics and time.
    sentences = [*before, say(
        "{count:,} message is missing from the log; other files of the store still refer to it.",
        "{count:,} messages are missing from the log; other files of the store still refer to "
        "them.",
        count=count)]
    if account.already_by_topic:
        sentences.append(say("By topic: {topics}.", topics=_ranked(account.already_by_topic, say)))
    if start.log.gone.earliest is not None and start.log.gone.latest is not None:
        sentences.append(say("They were stored between {first} and {last}.",
                             first=moment(start.log.gone.earliest),
                             last=moment(start.log.gone.latest)))
    return sentences


def _start(diagnosis: Diagnosis, say: Say) -> list[str]:
    # A broker that does not start changes nothing.
    start, lost = diagnosis.start, diagnosis.losses
    if not start.starts:
        return [say("A {version} broker would refuse to start.", version=start.broker_version)]
    # List what the start would cost in messages.
    sentences = []
    if lost.cut:
        sentences.append(say(
            "A {version} broker would truncate the log and lose {count:,} message that is still "
            "intact.",
            "A {version} broker would truncate the log and lose {count:,} messages that are "
            "still intact.", count=lost.cut, version=start.broker_version))
    if lost.without_entry:
        sentences.append(say(
            "{count:,} intact message would get no consume queue entry, so no consumer would "
            "receive it.",
            "{count:,} intact messages would get no consume queue entry, so no consumer would "
            "receive them.",
            count=lost.without_entry))
    if lost.cut_by_topic and lost.cut:
        sentences.append(say("By topic: {topics}.", topics=_ranked(lost.cut_by_topic, say)))
    if start.queues.lost:
        sentences.append(say(
            "A {version} broker would start with an empty log and delete all consume queues, which "
            "prove what is lost.", version=start.broker_version))
    # A start can also remove the evidence of earlier losses.
    if start.queues.cut and lost.known_lost and not lost.would_lose:
        sentences.append(say(
            "A {version} broker would start without losing an intact message, but would remove "
            "the evidence of the loss.", version=start.broker_version))
    if any(not loss.already for loss in start.beside_messages):
        sentences.append(say("A {version} broker would lose {what}: {cause}.",
                             version=start.broker_version, what=str(start.also_loses),
                             cause=_some([str(loss.cause) for loss in start.beside_messages
                                          if not loss.already], say)))
    # List other losses of a start, or say that there are none.
    if not sentences and not start.start_is_harmless:
        sentences.append(say("A {version} broker would start and do harm: {cause}.",
                             version=start.broker_version, cause=_some(
                                 [str(loss.cause) for loss in start.losses if not loss.already]
                                 or [str(diagnosis.verdict)], say)))
    return sentences or [say("A {version} broker would start and lose nothing.",
                             version=start.broker_version)]


def _concerned(diagnosis: Diagnosis, say: Say) -> list[str]:
    # Say why there is nothing to report about consumer groups.
    consumers = diagnosis.start.consumers.groups
    if consumers is None and "config" in diagnosis.not_judged:
        return [say("rmqctl does not support the layout of the consumer offsets in this store.")]
    groups = {queue.group for queue in consumers.queues} if consumers is not None else ()
    if consumers is None or not groups:
        return [say("No consumer offsets in this store.")]
    names = list(dict.fromkeys(queue.group for queue in consumers.affected))
    if not names:
        return [say("The only consumer group is not affected.",
                    "None of the {count:,} consumer groups is affected.", count=len(groups))
                if consumers.complete else
                say("No consumer group is known to be affected.")]
    # Name the affected groups, then what each kind of damage means for them.
    sentences = [say("{count:,} of {groups:,} consumer groups is affected: {names}.",
                     "{count:,} of {groups:,} consumer groups are affected: {names}.",
                     count=len(names), groups=len(groups), names=_some(names, say))]
    affected = (diagnosis.losses.groups or {}).values()
    unread = sum(group.unread_lost for group in affected)
    at_risk = sum(group.at_risk for group in affected)
    twice = sum(queue.twice for queue in consumers.affected)
    for count, sentence in (
            (unread, say("{count:,} delivery will never happen: the message was lost before it "
                         "was consumed.",
                         "{count:,} deliveries will never happen: the messages were lost before "
                         "they were consumed.", count=unread)),
            (at_risk, say("{count:,} more would be missed if a broker started on the store as it "
                          "is now.",
                          count=at_risk)),
            (twice, say("{count:,} message would be delivered a second time.",
                        "{count:,} messages would be delivered a second time.", count=twice))):
        if count:
            sentences.append(sentence)
    return sentences


def _to_do(diagnosis: Diagnosis, say: Say) -> list[str]:
    if diagnosis.sound:
        return [say("Nothing.")]
    sentences = []
    if diagnosis.lock.held:
        sentences.append(say("The store is in use. Check it again when no process writes to it."))
    elif not diagnosis.start.start_is_harmless:
        sentences.append(say("Do not start a broker on this store."))
    sentences.append(say("Copy the whole folder before you change anything."))
    if diagnosis.next:
        sentences.append(say("Then run these commands, the safest first. As printed, none of "
                             "them changes anything:"))
    return sentences


def _ranked(topics: Mapping[str, int], say: Say) -> str:
    ordered = sorted(topics.items(), key=lambda item: (-item[1], item[0]))
    return _some([f"{topic} {count:,}" for topic, count in ordered], say)


def _some(names: list[str], say: Say) -> str:
    shown = say(", ").join(names[:_NAMED])
    if len(names) <= _NAMED:
        return shown
    return say("{names} and {count:,} more", names=shown, count=len(names) - _NAMED)
