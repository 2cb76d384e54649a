"""``--strategy broker``: plan to leave a store as a broker's startup would leave it.

`rmqctl.checks.preflight.preflight` predicts what a broker does; this module turns the prediction
into steps. The resulting store looks as if a broker had loaded it, dispatched to the end, and
closed it cleanly. Consume queues and index are rebuilt in a scratch folder and compared with the
store's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rmqctl.broker.consume_queue import PLAIN
from rmqctl.broker.queue_form import is_likely_file, is_unproven
from rmqctl.broker.recovery import DispatchRange, as_configured, dispatched
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.checks.preflight.effects import QueueChange
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.verify.common import plural
from rmqctl.engine.dispatch.derive import deriver_for
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import make_folders
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.checkpoint import CHECKPOINT
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import (
    Create,
    Dropped,
    Lost,
    MoveAside,
    Plan,
    Replace,
    Step,
    places_of,
    touches,
)
from rmqctl.repair.rebuild.rocksdb_start import start_steps
from rmqctl.repair.rebuild.steps import compare
from rmqctl.repair.scratch import Scratch
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, TagsCodes
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.cut_off import NOTE, cut_at
from rmqctl.store.store import Store

COMMAND = "recover"
_KNOWN_BY = "record"
_EXT = "consumequeue_ext"
_INDEX = "index"
_QUEUES = ("consumequeue", "batchconsumequeue")
_SCHEDULE = props.SCHEDULE_TOPIC.encode()


def plan_broker(store: Store, version: str | None, scratch: Scratch,
                wall_clock: Callable[[], int], *, given: Mapping[str, Any] | None = None,
                prediction: Prediction | None = None) -> Plan:
    """Return the plan for an opened store. Derived files are built in ``scratch``.

    ``version``: version of the broker (None: the version that `preflight` assumes).
    ``given``: values by the names of `Settings`.
    ``prediction``: the result of `preflight` for this store and version, if known.

    If a broker does not start on the store, the plan has no steps, and its notes state the reasons.

    Raises: UsageError, StoreIOError, RefusedError, as `preflight` and `configured` do.
    """
    predicted = prediction or preflight(store, version)
    rules = as_configured(store, version_of(predicted.broker_version))
    # A broker without support for consume queues in RocksDB creates others, as files.
    store.layout.require_writable(store.root, made_anew=rules.rocksdb_queues)
    # No plan for a configuration that was not intended.
    if predicted.misled and predicted.starts:
        raise RefusedError(
            f"{store.root}: {predicted.misled[0].detail}. Nothing is planned for such a "
            "configuration; correct the file, or omit --broker-conf")
    actions = tuple(predicted.actions)
    notes = list(predicted.notes)
    if not predicted.starts:
        refusals = "; ".join(predicted.broker.refusals)
        notes.append(f"a {rules.name} broker does not start on this store: {refusals}")
        return Plan(COMMAND, store.root, actions, notes=tuple(notes))
    # What the broker does to log, queues and index.
    configuration = configured(store, {**(given or {}), "version": rules.name})
    notes += configuration.notes
    log = [MoveAside(path) for path in predicted.broker.doomed if not _derived(path)]
    queues, index = _Derived(store, predicted, rules, configuration.settings,
                             configuration.batch_topics.__contains__, scratch,
                             wall_clock).steps()
    if predicted.queues.noted is None and rules.rocksdb_queues and (
            store.layout.consumequeue == "rocksdb"):
        raise RefusedError(f"{store.root}: no commitlog files found; nothing is planned for the "
                           "consume queue database without them")
    if predicted.queues.noted is not None:
        queues += start_steps(store, predicted, rules, configuration.settings, scratch)
    # Then checkpoint, abort file, and the note where the log ends.
    steps: list[Step] = [*log, *queues, *index,
                         *_checkpoint(store, predicted, configuration.settings)]
    if store.has_abort:
        steps.append(MoveAside("abort"))
    steps += _note(store, predicted)
    # Notes of the plan.
    more = predicted.account.cut - len(predicted.log.cut.first)
    if more > 0:
        notes.append(f"{plural(more, 'more message is', 'more messages are')} lost (not listed)")
    unproven = (touches(steps, "consumequeue") and is_unproven(store, version)
                and not is_likely_file(store))
    return Plan(COMMAND, store.root, actions, tuple(steps), _lost(predicted),
                predicted.queues.table, tuple(notes), consumers=predicted.consumers.groups,
                form_unproven=unproven, dropped=_dropped(store, predicted))


def _derived(target: str) -> bool:
    return target.split(os.sep, 1)[0] in {"consumequeue", "consumequeue_ext",
                                          "batchconsumequeue", "index"}


def _lost(prediction: Prediction) -> tuple[Lost, ...]:
    return tuple(Lost(message.topic, message.queue_id, message.queue_offset,
                      message.physical_offset, message.size,
                      message.store_timestamp, message.store_timestamp, by=_KNOWN_BY)
                 for message in prediction.log.cut.first)


def _dropped(store: Store, predicted: Prediction) -> Dropped:
    """Return the messages that startup truncates, including messages known only from entries."""
    places = places_of(((message.physical_offset, message.size)
                        for message in predicted.log.cut.first), store.log.raw_at)
    lost = predicted.account
    # A start that truncates nothing keeps the entries, but voids the evidence of offsets.
    gone = lost.by_offsets if predicted.start_is_harmless else lost.known_lost
    return Dropped(lost.cut_for_sure + gone, lost.cut - lost.cut_for_sure, places)


def _checkpoint(store: Store, prediction: Prediction, settings: Settings) -> list[Step]:
    """Return the step that writes the checkpoint, if it changes. The bytes after the version's
    fields are kept.
    """
    assert prediction.broker.checkpoint is not None
    size = page.CLASSIC_SIZE if settings.profile.generation < 5 else CHECKPOINT.size
    exists = os.path.lexists(store.path("checkpoint"))
    try:
        old = store.read_small("checkpoint", most=1 << 20) if exists else b""
    except StoreIOError:
        old = b""
    full_page = old.ljust(page.PAGE_SIZE, b"\0")
    new = page.build(prediction.broker.checkpoint)[:size] + full_page[size:]
    if not exists:
        return [Create("checkpoint", new)]
    return [] if new == old else [Replace("checkpoint", new)]


def _note(store: Store, predicted: Prediction) -> list[Step]:
    """Return the step that records the new end of the log, if bytes or entries remain after it."""
    if not predicted.log.leaves or predicted.log.truncate_to is None:
        return []
    note = cut_at(store.log, predicted.log.truncate_to)
    if store.cut_off == note:
        return []
    older = os.path.lexists(store.path(NOTE))
    return [(Replace if older else Create)(NOTE, note.build())]


class _Derived:
    """The derived files of ``store``, rebuilt in ``scratch`` as ``prediction`` requires."""

    def __init__(self, store: Store, prediction: Prediction, version: BrokerVersion,
                 settings: Settings,
                 is_batch: Callable[[str], bool], scratch: Scratch,
                 wall_clock: Callable[[], int]) -> None:
        self._store, self._prediction, self._version = store, prediction, version
        self._scratch = scratch
        self._is_batch, self._clock = is_batch, wall_clock
        self._indexes = bool(prediction.index.entries) or any(
            action.action == "add entries" for action in prediction.actions)
        self._settings = replace(settings, message_index=self._indexes)
        self._ext = settings.consumequeue_ext
        self._doomed = set(prediction.broker.doomed)
        self._keys: set[QueueKey] = set()

    def steps(self) -> tuple[list[Step], list[Step]]:
        """Return the steps for the queues, and the steps for the index. Raises: StoreIOError,
        RefusedError.
        """
        in_files = self._prediction.queues.noted is None
        changed = [change for change in self._prediction.queues.changes
                   if (change.added or self._ext) and (in_files or change.kind != PLAIN)]
        if changed or self._indexes:
            self._keys = {(change.topic, change.queue_id) for change in changed}
            self._prepare(changed)
            self._dispatch()
        queues: list[Step] = []
        compared: set[str] = set()
        for change in changed:
            for folder in self._folders(change):
                compared.add(folder)
                queues += self._compare(folder)
        # A file that is moved aside may have been rebuilt and compared.
        queues += [MoveAside(path) for path in self._prediction.broker.doomed
                   if path.startswith(_QUEUES) and os.path.dirname(path) not in compared]
        if self._indexes:
            return queues, self._compare(_INDEX)
        return queues, [MoveAside(path) for path in self._prediction.broker.doomed
                        if path.startswith(_INDEX + os.sep)]

    def _folders(self, change: QueueChange) -> list[str]:
        folders = [os.path.join(change.kind, change.topic, str(change.queue_id))]
        if self._ext and change.kind == "consumequeue":
            folders.append(os.path.join(_EXT, change.topic, str(change.queue_id)))
        return folders

    def _compare(self, folder: str) -> list[Step]:
        # Older files were not copied: they stay unless they are moved aside.
        return compare(self._store.root, self._scratch.root, folder,
                       leave=lambda relative: relative not in self._doomed)

    def _prepare(self, changed: list[QueueChange]) -> None:
        """Copy into ``scratch`` the files to which the dispatcher appends, except files that are
        moved aside.
        """
        root = self._store.root
        make_folders(self._scratch.path("consumequeue"), durable=False)
        for change in changed:
            folder, *ext = self._folders(change)
            make_folders(self._scratch.path(folder), durable=False)
            for name in change.kept:
                self._scratch.copy_in(root, os.path.join(folder, name))
            for further in ext:
                self._scratch.copy_in(root, further)
        left = [file.name for file in self._store.index.listing.files
                if os.path.join(_INDEX, file.name) not in self._doomed]
        if self._indexes and left:
            self._scratch.copy_in(root, os.path.join(_INDEX, left[-1]))

    def _dispatch(self) -> None:
        log = CommitLog(self._prediction.log.loaded, self._store.log.file_size)
        try:
            for stretch in self._prediction.log.dispatch:
                self._stretch(log, stretch)
        finally:
            log.close()

    def _stretch(self, log: CommitLog, stretch: DispatchRange) -> None:
        deriver = deriver_for(self._settings)
        late = self._version.delay_levels_late and not stretch.reput
        codes = TagsCodes(deriver.topics, {}) if late else None
        dispatcher = Dispatcher(
            self._scratch.root, self._settings, self._clock, self._is_batch,
            stretch.end if stretch.reput else None, as_broker=True, wanted=self._wanted,
            positions=stretch.positions)
        try:
            for batch in dispatched(log, stretch, self._version):
                derived = deriver.derive(batch)
                if codes is not None and _SCHEDULE in deriver.topics.texts:
                    derived.tags = codes.codes(text.PropertySegments(batch), derived.topic,
                                               derived.store_timestamp)[0]
                dispatcher.apply(derived)
        finally:
            dispatcher.close()

    def _wanted(self, key: QueueKey) -> bool:
        return key in self._keys
