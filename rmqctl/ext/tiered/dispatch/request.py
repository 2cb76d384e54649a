"""Request, target, observer and result of a dispatch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import field, replace
from typing import Any

from rmqctl.checks.findings import ERROR
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.ext.tiered.dispatch.blocks import Block, Sweep
from rmqctl.ext.tiered.dispatch.local import LocalQueue
from rmqctl.ext.tiered.dispatch.plan import Outcome, Start, Upload, flat_queue
from rmqctl.ext.tiered.dispatch.resume import unit_rows
from rmqctl.ext.tiered.files.metadata_file import broker_root_of, find_metadata, tier_root
from rmqctl.ext.tiered.files.opening import open_reader
from rmqctl.ext.tiered.files.reader import PosixReader, TierReader
from rmqctl.ext.tiered.files.settings import TierSettings
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import is_url
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Sizes, Store

_FOLDERS_OF_A_STORE = ("commitlog", "consumequeue", "batchconsumequeue", "index", "config",
                       "timerlog", "timerwheel", "compaction", "transaction",
                       names.LOCAL_INDEX_FOLDER, ".rmqctl")


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a dispatch.

    ``given``: settings that the user passed, by the field names of `TierSettings`; None for all
    others.
    ``outside``: folders to which links in the tier may point.
    """

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
    outside: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    """Result of a dispatch. ``items``: number of items added to the index. ``index_files``: number
    of uploaded index files.
    """

    cluster: str
    broker: str
    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    items: int = 0
    index_files: int = 0
    checked: ReadBack | None = None
    stopped: bool = False

    @property
    def is_fault(self) -> bool:
        """Return whether any queue was not uploaded, any uploaded data is missing, or the
        verification failed.
        """
        return (any(outcome.is_fault for outcome in self.outcomes)
                or bool(self.checked and (self.checked.problems or self.checked.is_damaged)))

    def as_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster, "broker": self.broker,
            "messages": sum(outcome.messages for outcome in self.outcomes),
            "bytes": sum(outcome.bytes for outcome in self.outcomes),
            "index_items": self.items, "index_files": self.index_files,
            "checked": None if self.checked is None else {
                "messages": self.checked.messages, "problems": self.checked.problems,
                "findings": self.checked.findings},
            "queues": [outcome.as_dict() for outcome in self.outcomes]}


@dataclass(slots=True)
class DispatchObserver:
    """Observer of a dispatch: a progress bar and Ctrl-C."""

    total: Callable[[int], None] = lambda _: None
    advance: Callable[[int], None] = lambda _: None
    label: Callable[[str], None] = lambda _: None
    stopping: Callable[[], bool] = lambda: False


# -- where it writes ------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class DispatchTarget:
    """Target of a dispatch: a tier and the path of its metadata, which may not exist yet."""

    tier: str
    metadata_path: str

    @property
    def broker_root(self) -> str:
        """Folder that is the broker's local root. Raises: UsageError for metadata at a URL."""
        broker_root = broker_root_of(self.metadata_path)
        if broker_root is None:
            raise UsageError("--metadata must be a local file")
        return broker_root

    def open(self) -> Tier:
        """Open the tier, which may not exist yet, with the metadata file or its backup."""
        path: str | None = self.metadata_path
        if not os.path.lexists(self.metadata_path):
            backup = f"{self.metadata_path}.bak"
            path = backup if os.path.lexists(backup) else None
        reader = open_reader(self.tier) if is_url(self.tier) else PosixReader(self.tier)
        return Tier(reader, path, self.broker_root)


def locate(request: Request) -> tuple[Request, DispatchTarget, list[str]]:
    """Find the target of a dispatch. Return the request, the target, and notes for the user. The
    broker's name in the metadata is added to the returned request.

    The metadata is the given file, the file of a tier outside the store, or the store's file.
    Raises: RefusedError for a tier in the store's own folders; UsageError if the tier belongs to
    other metadata.
    """
    # If the root is the store itself, its tier is in a folder of the store.
    if not is_url(request.root) and os.path.realpath(request.root) == os.path.realpath(
            request.store):
        tier = os.path.join(request.root, names.TIER_FOLDER)
    else:
        tier = tier_root(request.root)
    _refuse_inside_store(tier, request)
    # Metadata that the user named always applies; the default is the store's.
    if request.metadata is not None:
        return request, DispatchTarget(tier, request.metadata), []
    target = DispatchTarget(tier, os.path.join(request.store, "config", names.METADATA_NAME))
    if is_url(tier):
        return request, target, []
    # A tier outside the store may have its own metadata.
    if os.path.realpath(tier) != os.path.realpath(os.path.join(request.store, names.TIER_FOLDER)):
        with closing(target.open()) as opened:
            path = _own_metadata(tier, request.store, opened)
            brokers = opened.metadata.brokers
        if path is not None:
            broker = request.broker or (brokers.pop() if len(brokers) == 1 else None)
            note = (f"{tier} uses the metadata in {path} and its own {names.LOCAL_INDEX_FOLDER}, "
                    f"because {target.metadata_path} belongs to another tier (pass --metadata to "
                    "use another file)")
            return replace(request, broker=broker), DispatchTarget(tier, path), [note]
    # Do not begin new metadata for a tier that has metadata elsewhere.
    other = find_metadata(tier)
    if other is not None and not os.path.lexists(target.metadata_path) and os.path.realpath(
            broker_root_of(other) or "") != os.path.realpath(target.broker_root):
        raise UsageError(f"{tier} has its metadata in {other}: pass this file with --metadata, or "
                         "pass a new file to start new metadata")
    return request, target, []


def _refuse_inside_store(tier: str, request: Request) -> None:
    """Raise RefusedError for a folder in which a broker would mistake a cluster's folder for a
    topic or file.
    """
    if is_url(tier):
        return
    tier_path = os.path.realpath(tier)
    for folder in (*_FOLDERS_OF_A_STORE, *request.commitlog_dirs):
        path = os.path.realpath(os.path.join(request.store, folder))
        if tier_path == path or tier_path.startswith(f"{path}{os.sep}"):
            raise RefusedError(f"{tier}: is in the {folder} folder of the store itself; a tier "
                               "needs its own folder, such as "
                               f"{os.path.join(request.store, 'tieredstore')}")


def _own_metadata(tier: str, store: str, opened: Tier) -> str | None:
    """Return the path of the metadata in ``config/`` of a tier outside the store. Return None if
    the tier uses the store's metadata (``opened``).

    A tier has its own metadata if a dispatch created its ``config/``, or if the store's metadata
    belongs to another tier. The metadata belongs to another tier if it lists segments with data,
    and either ``tier`` is empty or the store itself contains a tier.
    """
    folder = os.path.join(tier, "config")
    path = os.path.join(folder, names.METADATA_NAME)
    if os.path.isdir(folder):
        return path
    in_use = any(entry.size for tables in opened.metadata.segments.values()
                 for table in tables.values() for entry in table.values())
    inside = os.path.join(store, names.TIER_FOLDER)
    return path if in_use and (_is_tier(inside) or not _is_tier(tier)) else None


def _is_tier(folder: str) -> bool:
    try:
        return any(names.parse_cluster(name) for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from error


_MAX_FINDINGS, _MAX_LISTED = 1_000, 20
"""Maximum number of findings kept in memory (including informational findings), and of listed
findings.
"""


# -- what was uploaded is read back ---------------------------------------------------------------

@dataclass(slots=True)
class ReadBack:
    """Result of reading uploaded messages back.

    ``messages``: number of messages that are equal in tier and store.
    ``problems``: descriptions of the differences.
    ``findings``: findings of `verify` about the broker's part of the tier, including older damage.
    ``is_damaged``: whether any finding is an error.
    """

    messages: int = 0
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    is_damaged: bool = False


def read_back(store: Store, reader: TierReader, uploads: Sequence[Upload],
              advance: Callable[[int], None] = lambda _: None) -> ReadBack:
    """Compare the uploaded messages of a run, and their units, with the local store. Raises:
    StoreIOError.
    """
    view, checked = View(store), ReadBack()
    # Only queues with uploaded messages are compared, in the range of this run.
    bases: dict[int, int] = {}
    tiered: dict[int, FlatQueue] = {}
    locals_: list[LocalQueue] = []
    for upload in uploads:
        if not upload.outcome.messages:
            continue
        local = LocalQueue(view, store.queues.by_key[upload.local.topic, upload.local.queue_id])
        local.end = min(local.end, upload.outcome.end)
        local.seek(upload.outcome.start)
        locals_.append(local)
        bases[id(local)] = upload.first_base
        tiered[id(local)] = flat_queue(reader, upload.flat.name)
    # Read the local log in order, as the upload did.
    sweep = Sweep(store.log, locals_, lambda local: bases[id(local)])
    for blocks in sweep.windows():
        for block in blocks:
            number = id(block.queue)
            bases[number] += block.bytes
            advance(block.bytes)
            wrong = _difference(tiered[number], block)
            if wrong is None:
                checked.messages += len(block)
            else:
                checked.problems.append(f"{tiered[number].name.path}: {wrong}")
    # A message that can no longer be read locally was not compared.
    for local in locals_:
        if local.fault is not None:
            checked.problems.append(f"{local.topic}/{local.queue_id}: queue offset "
                                  f"{local.fault.queue_offset}: {local.fault.reason}")
    return checked


def _difference(queue: FlatQueue, block: Block) -> str | None:
    """Describe how the tier's copy of a block differs from the block; None if they are equal."""
    last = block.offset + len(block) - 1
    rows, _ = unit_rows(block.begin, block.size, block.tags)
    if queue.consume_queue.read(block.offset * UNIT_SIZE, len(rows)) != rows:
        return f"units at queue offsets {block.offset} to {last} differ from what was written"
    if queue.commit_log.read(block.base, block.bytes) != bytes(block.data[:block.bytes]):
        return f"messages at queue offsets {block.offset} to {last} differ from what was written"
    return None


def verify_all(checked: ReadBack, tier: Tier, broker: str, settings: TierSettings,
               advance: Callable[[int], None] = lambda _: None) -> None:
    """Verify a broker's part of a tier, and add the findings to ``checked``."""
    from rmqctl.ext.tiered.verify.verify import Options, TierVerification, verdict

    result = verdict(TierVerification(tier, Options(
        broker=broker, index_slots=settings.index_slots, index_max=settings.index_max),
        progress=advance), _MAX_FINDINGS)
    checked.is_damaged = any(severity == ERROR for _, severity in result.counts)
    for finding in [finding for finding in result.findings if finding.is_trouble][:_MAX_LISTED]:
        place = f"{finding.file or ''}{'' if finding.offset is None else f' @{finding.offset}'}"
        checked.findings.append(f"{finding.category}: {place}: {finding.detail}")
    if result.troubles > len(checked.findings):
        checked.findings.append(f"{result.troubles - len(checked.findings)} more: run `rmqctl "
                                f"tiered verify {tier.name}` for all")
