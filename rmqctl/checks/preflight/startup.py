"""A start with the configuration file that a broker has, and with each release that may start.

`rmqctl.checks.preflight.preflight` follows one start on the files that the broker opens. This says
which those are, and puts the outcomes together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rmqctl.actions import Action
from rmqctl.broker.conf.follow import Followed, follow
from rmqctl.broker.release import judged
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.checks.preflight.load import REFUSE
from rmqctl.checks.preflight.lost import Cut
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import RmqctlError
from rmqctl.phrases import Phrase
from rmqctl.store.store import Store

Predict = Callable[[Store, str, BrokerVersion, bool], Prediction]
"""(store, release, its rules, whether all of the log is looked at) -> what a start does."""


def start_of(store: Store, given: str | None, predict: Predict, *, full: bool) -> Prediction:
    """Return the start of a broker of the release ``given`` (None: of the one that the files show),
    and of every other one that nothing rules out, as far as the broker reads.
    """
    known = judged(store, given)
    outcomes: list[Prediction] = []
    for release in known.candidates:
        made = _start(store, release, predict, full=full and not outcomes)
        if len(known.candidates) > 1 and "v2 record" in made.stop_reason:
            continue  # no broker of that release has written this log
        outcomes.append(made)
    made, *others = outcomes or [made]
    made.proven = known.proven or not others
    made.others = others
    return made


def _start(store: Store, release: str, predict: Predict, *, full: bool) -> Prediction:
    """Return what a broker of ``release`` does that follows the configuration file of ``store``."""
    followed = follow(store, release, version_of(release))
    try:
        if followed.elsewhere:
            made = _elsewhere(store, release, followed)
        else:
            made = predict(followed.store, release, followed.version, full)
    finally:
        if followed.store is not store:
            followed.store.close()
    made.conf_path = store.sizes.conf.path
    made.log_unopened = followed.log_unopened
    if followed.log_unopened and not made.not_judged:
        _count_unopened(store, made)
    made.configuration, made.assumed = followed.told, followed.assumed
    for told in followed.told:
        if told.effect == "refuses":
            made.starts = False
            made.refusals.insert(0, told.said)
            made.actions.insert(0, Action(REFUSE, told.setting, None, None, told.said))
    return made


def _elsewhere(store: Store, release: str, followed: Followed) -> Prediction:
    """Return the prediction of a start in another folder: nothing of this one changes, and nothing
    of it is served.
    """
    made = Prediction(release, "abnormal" if store.has_abort else "normal",
                      profile=followed.version.name, mendable=store.layout.is_mended)
    if followed.log_unopened:
        made.truncate_to = 0
        made.stop_reason = Phrase("the log has no file")
    return made


def _count_unopened(store: Store, made: Prediction) -> None:
    """Count all messages of the log as out of reach for the broker; none is lost."""
    made.messages_already_lost, made.already_lost_by_topic = 0, {}
    made.already_lost_from = made.already_lost_to = made.already_lost_places = None
    with suppress(RmqctlError):  # which of several logs it is may not be known
        cut = Cut(store.log, 0)
        made.messages = made.messages_lost = cut.total
        made.messages_undecided = made.cut_undecided = cut.undecided
        made.lost_by_topic = dict(sorted(cut.by_topic.items()))
        made.lost_first = cut.first
        if cut.times:
            made.lost_from, made.lost_to = cut.times
