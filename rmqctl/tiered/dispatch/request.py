"""What a dispatch is asked for, what came of it, and who looks on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.formats.tiered import names
from rmqctl.store.store import Sizes
from rmqctl.tiered.dispatch.check import Checked
from rmqctl.tiered.dispatch.plan import Outcome, Start
from rmqctl.tiered.files.metadata_location import home_of, tier_root
from rmqctl.tiered.files.reader import is_url


@dataclass(frozen=True, slots=True)
class Request:
    """What to dispatch. ``given`` are settings by the names of `TierSettings`, None: not given."""

    store: str
    root: str
    metadata: str | None = None
    cluster: str | None = None
    broker: str | None = None
    topics: tuple[str, ...] = ()
    start: Start = field(default_factory=Start)
    only_due: bool = False
    restart_queue: bool = False
    index: bool = True
    seal_index: bool = False
    verify_after: bool = False
    given: dict[str, int | None] = field(default_factory=dict)
    commitlog_dirs: tuple[str, ...] = ()
    sizes: Sizes | None = None

    @property
    def tier(self) -> str:
        """The tier root: ``root``, or the ``tieredstore`` of a store that was named instead."""
        if not is_url(self.root) and os.path.realpath(self.root) == os.path.realpath(self.store):
            return os.path.join(self.root, names.TIER_FOLDER)
        return tier_root(self.root)

    @property
    def metadata_path(self) -> str:
        """Where the metadata is, or will be."""
        return self.metadata or os.path.join(self.store, "config", names.METADATA_NAME)

    @property
    def home(self) -> str:
        """The broker's local root."""
        home = home_of(self.metadata_path)
        if home is None:
            raise UsageError("--metadata is a file of this machine: a broker has it on its own")
        return home


@dataclass(slots=True)
class Result:
    """What came of it. ``items`` were put into the index, ``index_files`` uploaded."""

    cluster: str
    broker: str
    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    items: int = 0
    index_files: int = 0
    checked: Checked | None = None
    stopped: bool = False

    @property
    def is_fault(self) -> bool:
        """A queue could not be uploaded, what was uploaded is not there, or verify fails."""
        return (any(one.is_fault for one in self.outcomes)
                or bool(self.checked and (self.checked.problems or self.checked.is_damaged)))

    def as_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster, "broker": self.broker,
            "messages": sum(one.messages for one in self.outcomes),
            "bytes": sum(one.bytes for one in self.outcomes),
            "index_items": self.items, "index_files": self.index_files,
            "checked": None if self.checked is None else {
                "messages": self.checked.messages, "problems": self.checked.problems,
                "findings": self.checked.findings},
            "queues": [one.as_dict() for one in self.outcomes]}


@dataclass(slots=True)
class Watch:
    """How somebody looks on: a progress bar, and whether Ctrl-C came."""

    total: Callable[[int], None] = lambda _: None
    advance: Callable[[int], None] = lambda _: None
    label: Callable[[str], None] = lambda _: None
    stopping: Callable[[], bool] = lambda: False
