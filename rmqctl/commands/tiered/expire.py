"""``rmqctl tiered expire``: remove expired files of a tier as the broker would."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, Topic, Zone
from rmqctl.commands.shared.tiered_options import TierOptions
from rmqctl.errors import UsageError
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import now_ms, parse_duration, parse_time, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    older_than: Annotated[int, typer.Option(
        "--older-than", metavar="AGE", parser=parse_duration, show_default=False,
        help="Expire messages older than this: 7d, 1d12h (default: 72h). A topic's own reserve "
             "time takes precedence.")],
    topic: Topic = None,
    now: Annotated[str | None, typer.Option(
        "--now", metavar="TIME", show_default=False,
        help="The time from which ages are counted (default: now).")] = None,
    tier: Annotated[TierOptions, pick("metadata cluster broker broker_conf")],
    apply: ApplyOptions,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Remove expired files of a tier by a broker's expiry rules.

    Shows the plan; --apply carries it out. Removes the oldest commit log segments in which every
    message has expired, but never the last one. Consume queue files follow; index files expire by
    their newest item. Files are moved aside: `rmqctl undo DIR` restores them until you remove the
    folder named at the end, which frees the space. The broker must be stopped.

        rmqctl tiered expire STORE/tieredstore --older-than 72h
        rmqctl tiered expire STORE/tieredstore --older-than 7d --topic Orders --apply --yes
    """
    from rmqctl.checks.impact import Impact
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.ext.tiered.expire import expire
    from rmqctl.ext.tiered.files.locking import refuse_noted
    from rmqctl.ext.tiered.files.metadata_file import writable_around
    from rmqctl.ext.tiered.recover.scope import check_root, open_tier, scope_of

    # Resolve the time and the topic once: planning and applying must agree on them.
    show_times_in(tz)
    time = now_ms() if now is None else parse_time(now, tz=tz)
    with open_tier(tier.root, tier.metadata) as opened:
        place, scope = opened.name, scope_of(opened, tier.cluster, tier.broker)
        if topic is not None and next(opened.queues(topic, broker=scope.broker), None) is None:
            raise UsageError(f"{place}: contains no queue of topic {topic!r}")

    # Open the tier again: the plan that is applied is made under the lock.
    def propose(_: Scratch) -> plan_page.Proposal:
        with open_tier(tier.root, tier.metadata) as opened:
            expiry = expire(opened, scope, time, older_than, topic)
        messages, files = sum(expiry.messages.values()), sum(expiry.files.values())
        return plan_page.Proposal(
            expiry.plan,
            {"now": time, "bytes": expiry.bytes, "files": dict(expiry.files),
             "messages_expired": messages, "expired_by_topic": expiry.messages,
             "queues": [queue.as_dict() for queue in expiry.queues]},
            {"messages": count_text(messages), "queues": count_text(len(expiry.queues)),
             "files": f"{count_text(files)} ({size_text(expiry.bytes)})"},
            impact=Impact(messages, topics=expiry.messages) if messages else None)

    # Metadata in a folder that was not named must not be changed.
    if apply.apply:
        refuse_noted(place, scope.metadata_path, tier.metadata, apply.write_outside or ())
    applying.run(out, place, "tiered expire", propose, apply,
                 tier=applying.Tiered([scope.broker_root], check_root(tier.metadata),
                                      writable_around(place, tier.metadata)))
