"""The files of the controller mode in a store: epochs, and the broker's identity (spec: dledger.md
§8, checkpoint-and-small-files.md §5).

An epoch is the part of the log that one master wrote. It begins where the log ended when that
broker became master. It ends at the start of the next epoch or at the end of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import broker_identity, epoch
from rmqctl.formats.config.broker_identity import BrokerIdentity
from rmqctl.formats.config.epoch import Epoch
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.store import Store

EPOCHS = "epochFileCheckpoint"
BACKUP = f"{EPOCHS}.bak"
IDENTITY = "brokerIdentity"
MAX_FILE_SIZE = 4 << 20
"""Maximum bytes of an epoch file or identity file that is read."""


@dataclass(frozen=True, slots=True)
class EpochCopy:
    """One copy of the epoch file. A missing or empty copy has neither a ``fault`` nor entries."""

    name: str
    epochs: tuple[Epoch, ...] = ()
    fault: FormatError | StoreIOError | None = None

    @property
    def reason(self) -> str:
        """A description of the fault; "" if nothing is wrong."""
        if isinstance(self.fault, FormatError):
            return f"{self.fault.path}: {self.fault.reason}"
        return "" if self.fault is None else str(self.fault)


@dataclass(frozen=True, slots=True)
class EpochFile:
    """The epoch file and its backup; a broker uses the backup if the main file is missing, empty or
    invalid.
    """

    main: EpochCopy
    backup: EpochCopy

    @property
    def used(self) -> EpochCopy | None:
        """The copy that a broker uses; None if neither copy has an epoch."""
        return next((copy for copy in (self.main, self.backup) if copy.epochs), None)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return () if self.used is None else self.used.epochs

    @property
    def copies(self) -> tuple[EpochCopy, EpochCopy]:
        return self.main, self.backup


class EpochSpan(NamedTuple):
    """An epoch with its end; the end of the last epoch is None if the end of the log is unknown."""

    epoch: int
    start_offset: int
    end_offset: int | None


def read_epochs(store: Store) -> EpochFile:
    """Return the epoch file and its backup. Never raises."""
    return EpochFile(_copy(store, EPOCHS), _copy(store, BACKUP))


def _copy(store: Store, name: str) -> EpochCopy:
    if not vfs.lexists(store.path(name)):
        return EpochCopy(name)
    try:
        return EpochCopy(name, tuple(epoch.parse(store.read_small(name, most=MAX_FILE_SIZE))))
    except (FormatError, StoreIOError) as error:
        return EpochCopy(name, fault=error)


def spans(epochs: Sequence[Epoch], log_end: int | None) -> list[EpochSpan]:
    """Return the epochs, each with its end."""
    ends = [*(following.start_offset for following in epochs[1:]), log_end]
    return [EpochSpan(*epoch, end) for epoch, end in zip(epochs, ends, strict=False)]


def read_identity(store: Store) -> BrokerIdentity | None:
    """Return the broker's identity from the controller mode file; None if no valid identity can be
    read. Never raises.
    """
    try:
        return broker_identity.parse(store.read_small(IDENTITY, most=1 << 16))
    except (FormatError, StoreIOError):
        return None


def about(store: Store, log_end: int | None) -> dict[str, Any] | None:
    """Return the `info` fields of the controller mode; None for a store that was not in that
    mode.
    """
    identity, file = read_identity(store), read_epochs(store)
    if not store.layout.controller and identity is None:
        return None
    return {
        "identity": None if identity is None else identity._asdict(),
        "epochs": [span._asdict() for span in spans(file.epochs, log_end)],
        "epochs_from": None if file.used is None else file.used.name}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing the epochs of two replicas, ``a`` and ``b``.

    ``consistent_point``: the physical offset up to which the logs are the same according to the
    epochs. A slave truncates its log there. None if the replicas have no epoch in common.
    ``common``: the number of equal epochs at the start of the two lists.
    ``conflict``: the first epoch (its number) that starts at different offsets; None if no epoch
    does.
    """

    consistent_point: int | None
    common: int
    conflict: int | None


def agreement(a: Sequence[Epoch], b: Sequence[Epoch], a_end: int, b_end: int) -> Agreement:
    """Return the agreement of two replicas. ``a_end``, ``b_end``: the ends of their logs.

    The consistent point is the end of the greatest epoch that starts at the same offset in both
    replicas. If this epoch ends at different offsets, the consistent point is the smaller offset
    (dledger.md §8).
    """
    left, right = ({span.epoch: span for span in spans(epochs, end)}
                   for epochs, end in ((a, a_end), (b, b_end)))
    shared = sorted(left.keys() & right.keys())
    same = [number for number in shared
            if left[number].start_offset == right[number].start_offset]
    point = min(left[same[-1]].end_offset or 0, right[same[-1]].end_offset or 0) if same else None
    common = next((number for number, (own, other) in enumerate(zip(a, b, strict=False))
                   if own != other), min(len(a), len(b)))
    return Agreement(point, common,
                     next((number for number in shared if number not in same), None))


def disorder(epochs: Sequence[Epoch]) -> int | None:
    """Return the list index of the first epoch that cannot follow the previous one; None if all
    can.
    """
    return next((number for number in range(1, len(epochs)) if not (
        epochs[number - 1].epoch < epochs[number].epoch
        and epochs[number - 1].start_offset < epochs[number].start_offset)), None)
