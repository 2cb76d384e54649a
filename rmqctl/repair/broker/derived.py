"""Consumequeues and index as a broker leaves them: made in a scratch folder, then compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from rmqctl.checks.preflight.types import Prediction, QueueChange, Rules, Stretch
from rmqctl.checks.preflight.walk import dispatched
from rmqctl.engine.config.settings import Settings
from rmqctl.engine.dispatch.derive import deriver_for
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.files.durable import make_folders
from rmqctl.formats.local import properties as props
from rmqctl.repair.plan import MoveAside, Step
from rmqctl.repair.rebuild.steps import compare
from rmqctl.repair.scratch import Scratch
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, TagsCodes
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store

_EXT = "consumequeue_ext"
_INDEX = "index"
_QUEUES = ("consumequeue", "batchconsumequeue")
_SCHEDULE = props.SCHEDULE_TOPIC.encode()


class Derived:
    """Carries out in ``scratch`` what ``made`` says of the derived files of ``store``."""

    def __init__(self, store: Store, made: Prediction, rules: Rules, settings: Settings,
                 is_batch: Callable[[str], bool], scratch: Scratch,
                 wall_clock: Callable[[], int]) -> None:
        self._store, self._made, self._rules, self._scratch = store, made, rules, scratch
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

    def _stretch(self, log: CommitLog, stretch: Stretch) -> None:
        deriver = deriver_for(self._settings)
        late = self._rules.delay_levels_late and not stretch.reput
        codes = TagsCodes(deriver.topics, {}) if late else None
        dispatcher = Dispatcher(
            self._scratch.root, self._settings, self._clock, self._is_batch,
            stretch.end if stretch.reput else None, as_broker=True, wanted=self._wanted,
            positions=stretch.positions)
        try:
            for batch in dispatched(log, stretch, self._rules):
                made = deriver.derive(batch)
                if codes is not None and _SCHEDULE in deriver.topics.texts:
                    made.tags = codes.codes(text.Properties(batch), made.topic,
                                            made.store_timestamp)[0]
                dispatcher.apply(made)
        finally:
            dispatcher.close()

    def _wanted(self, key: QueueKey) -> bool:
        return key in self._keys
