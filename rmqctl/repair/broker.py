"""``--strategy broker``: the plan which leaves what a broker's own start would leave.

`rmqctl.checks.preflight.preflight` says what a broker does; this turns that very prediction into
steps. What results is a store that the broker has loaded, dispatched to the end and stopped
cleanly. Consumequeues and index are made in a scratch folder, then compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rmqctl.broker.recovery import DispatchRange, dispatched
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.checks.preflight.preflight import Progress, preflight
from rmqctl.checks.preflight.types import Prediction, QueueChange
from rmqctl.checks.verify.common import plural
from rmqctl.engine.dispatch.derive import deriver_for
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import make_folders
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.checkpoint import CHECKPOINT
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Create, Lost, MoveAside, Plan, Replace, Step
from rmqctl.repair.rebuild.steps import compare
from rmqctl.repair.scratch import Scratch
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, TagsCodes
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store

COMMAND = "recover"
_KNOWN_BY = "record"
_EXT = "consumequeue_ext"
_INDEX = "index"
_QUEUES = ("consumequeue", "batchconsumequeue")
_SCHEDULE = props.SCHEDULE_TOPIC.encode()


def plan_broker(store: Store, version: str | None, scratch: Scratch,
                wall_clock: Callable[[], int], *, given: Mapping[str, Any] | None = None,
                prediction: Prediction | None = None,
                progress: Progress | None = None) -> Plan:
    """The plan for an opened store; derived files are made in ``scratch``.

    ``version`` None: the one `preflight` takes. ``given``: values by the names of
    `Settings`. ``prediction``: what `preflight` said of this store and version, if it was asked.
    Where a broker does not start, the plan is empty and its notes say why. UsageError,
    StoreIOError, RefusedError as `preflight` and `configured` raise them.
    """
    store.layout.require_writable(store.root)
    made = prediction or preflight(store, version, progress=progress)
    rules = version_of(made.broker_version)
    actions = tuple(made.actions)
    notes = list(made.notes)
    if not made.starts:
        said = "; ".join(made.refusals)
        return Plan(COMMAND, store.root, actions,
                    notes=(*notes, f"a {rules.name} broker does not start on it: {said}"))
    known = configured(store, {**(given or {}), "version": rules.name})
    notes += known.notes
    log = [MoveAside(one) for one in made.doomed if not _derived(one)]
    queues, index = _Derived(store, made, rules, known.settings, known.batch_topics.__contains__,
                            scratch, wall_clock).steps()
    steps: list[Step] = [*log, *queues, *index, *_checkpoint(store, made, known.settings)]
    if store.has_abort:
        steps.append(MoveAside("abort"))
    more = made.messages_lost - len(made.lost_first)
    if more > 0:
        notes.append(f"{plural(more, 'more message is', 'more messages are')} lost than listed")
    return Plan(COMMAND, store.root, actions, tuple(steps), _lost(made), made.table, tuple(notes))


def _derived(target: str) -> bool:
    return target.split(os.sep, 1)[0] in {"consumequeue", "consumequeue_ext",
                                          "batchconsumequeue", "index"}


def _lost(made: Prediction) -> tuple[Lost, ...]:
    return tuple(Lost(one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.size,
                      one.store_timestamp, one.store_timestamp, by=_KNOWN_BY)
                 for one in made.lost_first)


def _checkpoint(store: Store, made: Prediction, settings: Settings) -> list[Step]:
    """The checkpoint's page, if it changes; bytes that the version does not know stay."""
    assert made.checkpoint is not None
    size = page.CLASSIC_SIZE if settings.profile.generation < 5 else CHECKPOINT.size
    there = os.path.lexists(store.path("checkpoint"))
    try:
        old = store.read_small("checkpoint", most=1 << 20) if there else b""
    except StoreIOError:
        old = b""
    whole = old.ljust(page.PAGE_SIZE, b"\0")
    new = page.build(made.checkpoint)[:size] + whole[size:]
    if not there:
        return [Create("checkpoint", new)]
    return [] if new == old else [Replace("checkpoint", new)]


class _Derived:
    """Carries out in ``scratch`` what ``made`` says of the derived files of ``store``."""

    def __init__(self, store: Store, made: Prediction, version: BrokerVersion, settings: Settings,
                 is_batch: Callable[[str], bool], scratch: Scratch,
                 wall_clock: Callable[[], int]) -> None:
        self._store, self._made, self._version, self._scratch = store, made, version, scratch
        self._is_batch, self._clock = is_batch, wall_clock
        self._indexes = bool(made.index_entries) or any(
            one.action == "add entries" for one in made.actions)
        self._settings = replace(settings, message_index=self._indexes)
        self._ext = settings.consumequeue_ext
        self._doomed = set(made.doomed)
        self._keys: set[QueueKey] = set()

    def steps(self) -> tuple[list[Step], list[Step]]:
        """(steps for the queues, steps for the index). StoreIOError, RefusedError."""
        changed = [one for one in self._made.queues if one.added or self._ext]
        if changed or self._indexes:
            self._keys = {(one.topic, one.queue_id) for one in changed}
            self._prepare(changed)
            self._dispatch()
        queues: list[Step] = []
        compared: set[str] = set()
        for one in changed:
            for folder in self._folders(one):
                compared.add(folder)
                queues += self._compare(folder)
        # In what was compared, a file that goes away may have been made anew.
        queues += [MoveAside(one) for one in self._made.doomed
                   if one.startswith(_QUEUES) and os.path.dirname(one) not in compared]
        if self._indexes:
            return queues, self._compare(_INDEX)
        return queues, [MoveAside(one) for one in self._made.doomed
                        if one.startswith(_INDEX + os.sep)]

    def _folders(self, one: QueueChange) -> list[str]:
        found = [os.path.join(one.kind, one.topic, str(one.queue_id))]
        if self._ext and one.kind == "consumequeue":
            found.append(os.path.join(_EXT, one.topic, str(one.queue_id)))
        return found

    def _compare(self, folder: str) -> list[Step]:
        # Older files were not copied: what is not said to go stays.
        return compare(self._store.root, self._scratch.root, folder,
                       leave=lambda relative: relative not in self._doomed)

    def _prepare(self, changed: list[QueueChange]) -> None:
        """Copies in what the dispatcher goes on from, without files that go away before."""
        root = self._store.root
        make_folders(self._scratch.path("consumequeue"), durable=False)
        for one in changed:
            folder, *ext = self._folders(one)
            make_folders(self._scratch.path(folder), durable=False)
            for name in one.kept:
                self._scratch.copy_in(root, os.path.join(folder, name))
            for further in ext:
                self._scratch.copy_in(root, further)
        kept = [file.name for file in self._store.index_listing.files
                if os.path.join(_INDEX, file.name) not in self._doomed]
        if self._indexes and kept:
            self._scratch.copy_in(root, os.path.join(_INDEX, kept[-1]))

    def _dispatch(self) -> None:
        log = CommitLog(self._made.loaded_log, self._store.log.file_size)
        try:
            for stretch in self._made.dispatch:
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
                made = deriver.derive(batch)
                if codes is not None and _SCHEDULE in deriver.topics.texts:
                    made.tags = codes.codes(text.Properties(batch), made.topic,
                                            made.store_timestamp)[0]
                dispatcher.apply(made)
        finally:
            dispatcher.close()

    def _wanted(self, key: QueueKey) -> bool:
        return key in self._keys
