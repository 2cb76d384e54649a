"""Description of a prediction in one sentence, which all output uses."""

from __future__ import annotations

from collections.abc import Mapping

from rmqctl.checks.preflight.types import Prediction
from rmqctl.phrases import Joined, Phrase, counted, some_of

_MAX_NAMED = 3
_MAX_CAUSES = 2


def in_words(prediction: Prediction) -> Phrase:
    """Return a sentence that says what was lost earlier, whether a broker would start, and what it
    would lose.
    """
    # Begin with the subject of the sentence, and with what is already lost without any start.
    broker = prediction.subject
    if prediction.not_judged:
        broker = Phrase("as far as known, {broker}", broker=broker)
    gone, account = [], prediction.account
    if account.known_lost:
        lost = account.lost_in_words(account.known_lost)
        topics = _of_topics(account.already_by_topic)
        gone.append(Phrase("{what} ({names})", what=lost, names=topics) if topics else lost)
    causes = [loss.cause for loss in prediction.beside_messages if loss.already]
    if causes:
        gone.append(some_of(causes, _MAX_CAUSES))
    if not prediction.starts:
        return Joined("; ", [*gone, Phrase("{broker} would not start", broker=broker)])
    # Collect what the start itself would cost.
    costs = []
    if prediction.misled:
        costs.append(Phrase("not serve all of this store ({settings})", settings=Joined(
            ", ", dict.fromkeys(setting.setting for setting in prediction.misled))))
    if account.cut and prediction.broker.log_unopened:
        costs.append(Phrase("not read {count:,} intact message",
                            "not read {count:,} intact messages", count=account.cut))
    elif account.cut:
        costs.append(Phrase(
            "truncate {count:,} message, {undecided:,} of them undecided",
            "truncate {count:,} messages, {undecided:,} of them undecided",
            count=account.cut, undecided=account.cut_undecided) if account.cut_undecided else
            Phrase("truncate {count:,} intact message",
                   "truncate {count:,} intact messages", count=account.cut))
    if account.without_entry:
        costs.append(Phrase("leave {count:,} message without a consume queue entry",
                            "leave {count:,} messages without a consume queue entry",
                            count=account.without_entry))
    if prediction.log.shadowed:
        costs.append(Phrase(
            "possibly not find {count:,} message in misplaced or duplicate log files",
            "possibly not find {count:,} messages in misplaced or duplicate log files",
            count=prediction.log.shadowed))
    if prediction.log.undecodable:
        costs.append(Phrase("serve {count:,} message that clients cannot decode",
                            "serve {count:,} messages that clients cannot decode",
                            count=prediction.log.undecodable))
    if prediction.queues.lost:
        costs.append(Phrase("delete all consume queues ({rows:,} entries)",
                            rows=prediction.queues.lost))
    if prediction.broker.second_start is not None:
        costs.append(Phrase("keep {count:,} message that the next start loses",
                            "keep {count:,} messages that the next start loses",
                            count=prediction.broker.second_start.messages_lost))
    if account.known_lost and prediction.queues.cut and not costs:
        costs.append(Phrase("delete the entries that prove this loss"))
    also = prediction.also_loses
    if costs and also is not None:
        costs.append(Phrase("lose {what}", what=also))
    # Without any cost, say so; how certain this is depends on what could be judged.
    costless = Phrase("lose nothing more") if gone and also is None else (
        prediction.costless if not prediction.not_judged else Phrase("truncate no message")
        if prediction.log.truncate_to is not None else Phrase("possibly truncate messages"))
    # Add what costs no message but needs attention.
    beyond = []
    if prediction.broker.refuses_writes:
        beyond.append(Phrase("the broker rejects messages: its disk is full"))
    groups = {offset.group for offset in prediction.consumers.beyond_end}
    if groups:
        beyond.append(Phrase("offsets of {count:,} group would be beyond the end of a queue",
                             "offsets of {count:,} groups would be beyond the end of a queue",
                             count=len(groups)))
    if prediction.log.damaged:
        beyond.append(Phrase("{count:,} message has damaged properties",
                             "{count:,} messages have damaged properties",
                             count=prediction.log.damaged))
    return Joined("; ", [*gone, Phrase("{broker} would start and {what}", broker=broker,
                                       what=Joined(" and ", costs or [costless])), *beyond])


def _of_topics(counts: Mapping[str, int]) -> Phrase:
    """Return text with the topics that have the largest counts, such as ``orders 12, bills 3``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown: list[str] = [f"{topic} {count:,}" for topic, count in ordered[:_MAX_NAMED]]
    if len(ordered) > _MAX_NAMED:
        shown.append(counted(len(ordered) - _MAX_NAMED, "more topic"))
    return Joined(", ", shown)
