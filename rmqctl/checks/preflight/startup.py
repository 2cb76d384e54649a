"""Prediction of startups with the broker's configuration file, one for each possible release.

`rmqctl.checks.preflight.preflight` predicts one start on the files that the broker opens. This
module determines these files and combines the predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

from rmqctl.actions import Action
from rmqctl.broker.conf.follow import Followed, follow
from rmqctl.broker.release import judged
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.checks.preflight.effects import BrokerEffect, GoneMessages
from rmqctl.checks.preflight.load import REFUSE, relative
from rmqctl.checks.preflight.lost import TailMessages
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import RmqctlError
from rmqctl.phrases import Joined, Phrase
from rmqctl.store.log_folders import COMMITLOG
from rmqctl.store.store import Store

Predict = Callable[[Store, str, BrokerVersion, bool], Prediction]
"""Function that predicts one start. Parameters:

* the store
* the release
* the rules of the release
* whether to examine the whole log
"""


def start_of(store: Store, given: str | None, predict: Predict, *, full: bool) -> Prediction:
    """Return the prediction for the release ``given``; if None, for the release that the files
    show.

    The prediction's ``others`` are the predictions for all other possible releases. These cover
    only the part of the log that a broker reads.
    """
    releases = judged(store, given)
    outcomes: list[Prediction] = []
    for release in releases.candidates:
        prediction = _start(store, release, predict, full=full and not outcomes)
        if len(releases.candidates) > 1 and "v2 record" in prediction.log.stop_reason:
            continue  # no broker of that release has written this log
        outcomes.append(prediction)
    prediction, *others = outcomes or [prediction]
    prediction.proven = releases.proven or not others
    prediction.others = others
    return prediction


def _start(store: Store, release: str, predict: Predict, *, full: bool) -> Prediction:
    """Return the prediction for a broker of ``release`` that uses the configuration file of
    ``store``.
    """
    followed = follow(store, release, version_of(release))
    try:
        if followed.elsewhere:
            prediction = _elsewhere(store, release, followed)
        else:
            prediction = _by_names(followed.store, release, followed.version, predict, full=full)
    finally:
        if followed.store is not store:
            followed.store.close()
    prediction.broker.conf_path = store.sizes.conf.path
    prediction.broker.log_unopened = followed.log_unopened
    if followed.log_unopened and not prediction.not_judged:
        _count_unopened(store, prediction)
    prediction.broker.configuration, prediction.broker.assumed = followed.effects, followed.assumed
    if store.log_is_found and not store.sizes.conf.path:
        _note_folders(store, prediction)
    for setting in followed.effects:
        if setting.effect == "refuses":
            prediction.broker.refusals.insert(0, setting.detail)
            prediction.actions.insert(
                0, Action(REFUSE, setting.setting, None, None, setting.detail))
    return prediction


def _by_names(store: Store, release: str, version: BrokerVersion, predict: Predict, *,
              full: bool) -> Prediction:
    """Return the prediction for a broker, which reads each log file as the one in its name, and
    none outside the log's folder.

    Messages in other files are not lost, but the broker does not find them.
    """
    prediction = predict(store, release, version, full)
    if not store.is_misplaced:
        return prediction
    with closing(store.by_name()) as named:
        start = predict(named, release, version, full)
    # What is lost now, and how much of the log remains, is judged by the messages.
    start.log.gone, start.log.messages = prediction.log.gone, prediction.log.messages
    start.log.undecided = prediction.log.undecided
    if not start.log.cut.count:
        start.consumers, start.queues.losses = prediction.consumers, prediction.queues.losses
    paths = {trouble.path: trouble for trouble in store.log_troubles
             if trouble.exchanged or trouble.nested}
    count = sum(len(batch) for file in store.log.files if file.path in paths
                for batch in store.log.walk(file.base, file.end))
    start.log.shadowed += max(0, count - start.log.cut.count)
    exchanged = sorted(path for path, trouble in paths.items() if trouble.exchanged)
    if exchanged:
        start.notes.append(Phrase(
            "{file} has the name of another log file. A broker delivers wrong messages from it; "
            "`rmqctl recover` gives it the right name",
            "{count:,} log files have the name of another one, the first {file}. A broker delivers "
            "wrong messages from them; `rmqctl recover` gives them the right names",
            count=len(exchanged), file=relative(store, exchanged[0])))
    start.notes += [Phrase(
        "{file}: {reason}. No broker reads it there; `rmqctl recover` moves it back",
        file=relative(store, path), reason=trouble.reason)
        for path, trouble in paths.items() if trouble.nested]
    return start


def _note_folders(store: Store, prediction: Prediction) -> None:
    """Note which broker reads the log, if its folders are known from its files only."""
    folders = [relative(store, folder) for folder in store.log_folders]
    prediction.log.found_in = ",".join(folders)
    others = [folder for folder in folders if folder != COMMITLOG]
    if len(others) == len(folders):
        prediction.notes.append(Phrase(
            "a broker reads {folder} only if storePathCommitLog names it. Any other broker finds "
            "no log at startup, and deletes all consume queues: give the folder its name commitlog "
            "again, or pass the broker's configuration file with --broker-conf",
            folder=Joined(", ", others)))
    else:
        prediction.notes.append(Phrase(
            "a broker reads {folder} only if storePathCommitLog names all folders of the log. Any "
            "other broker lacks its messages: move its files to commitlog, or pass the broker's "
            "configuration file with --broker-conf", folder=Joined(", ", others)))


def _elsewhere(store: Store, release: str, followed: Followed) -> Prediction:
    """Return the prediction for a broker that starts on another folder. Such a broker does not
    change or serve this store.
    """
    prediction = Prediction(release, BrokerEffect("abnormal" if store.has_abort else "normal"),
                            profile=followed.version.name, mendable=store.layout.is_mended)
    if followed.log_unopened:
        prediction.log.truncate_to = 0
        prediction.log.stop_reason = Phrase("the log has no files")
    return prediction


def _count_unopened(store: Store, prediction: Prediction) -> None:
    """Count all messages of the log as unreachable for the broker, but not as lost."""
    prediction.log.gone = GoneMessages()
    with suppress(RmqctlError):  # it may be unknown which of several logs it is
        cut = TailMessages(store.log, 0).as_cut()
        prediction.log.cut = cut
        prediction.log.messages, prediction.log.undecided = cut.count, cut.undecided
