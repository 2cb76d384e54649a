"""The part of a tier that belongs to one broker, and the path of that broker's metadata."""

from __future__ import annotations

import os
from collections.abc import Callable

from rmqctl.errors import FormatError, NotAStoreError, StoreIOError, UsageError
from rmqctl.ext.tiered.files.metadata_file import broker_root_of, expected_path, load
from rmqctl.ext.tiered.tier import Tier
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import is_url


@dataclass(frozen=True, slots=True)
class Scope:
    """A broker's part of a tier. ``metadata_path``: the metadata file, which may not exist yet;
    ``broker_root``: the broker's local root.
    """

    cluster: str
    broker: str
    metadata_path: str
    broker_root: str


def open_tier(root: str, metadata: str | None) -> Tier:
    """Open a tier whose metadata may be lost. Raises: UsageError, NotAStoreError."""
    if is_url(root):
        raise UsageError(f"{root}: only a tier in a local folder can be changed")
    present = metadata is not None and os.path.lexists(metadata)
    tier = Tier.open(root, metadata if present else None)
    path = metadata or expected_path(tier.name)
    if path is not None:
        tier.metadata_path, tier.broker_root = path, broker_root_of(path)
    return tier


def scope_of(tier: Tier, cluster: str | None, broker: str | None) -> Scope:
    """Return the scope of a broker. If no name is given, use the only broker, or the broker in the
    metadata.
    Raises: UsageError.
    """
    if tier.metadata_path is None or tier.broker_root is None:
        raise UsageError(f"{tier.name}: cannot determine where its metadata was: pass the file "
                         "with --metadata")
    owners = tier.contents.owners
    meant = sorted(owner for owner in owners if cluster in (None, owner[0])
                   and broker in (None, owner[1]))
    if len(meant) > 1:
        of_metadata = _brokers(tier.metadata_path)
        meant = [owner for owner in meant if owner[1] in of_metadata] or meant
    if not meant:
        if owners and (cluster or broker):
            raise UsageError(f"{tier.name}: does not contain {cluster or ''}/{broker or ''}")
        raise NotAStoreError(f"{tier.name}: contains no tier files")
    if len(meant) > 1:
        every = ", ".join(f"{cluster}/{other}" for cluster, other in meant)
        raise UsageError(f"{tier.name} has files of several brokers ({every}), each with its own "
                         "metadata: choose one with --broker (and --cluster)")
    return Scope(*meant[0], tier.metadata_path, tier.broker_root)


def _brokers(path: str) -> set[str]:
    brokers: set[str] = set()
    for name in (path, f"{path}.bak"):
        try:
            metadata = load(name)
        except (StoreIOError, FormatError):
            continue
        if metadata is None:
            continue
        for table in metadata.segments.values():
            brokers.update(broker.partition("/")[0] for broker in table)
        brokers |= metadata.brokers
    return brokers


def check_root(metadata: str | None) -> Callable[[str], object]:
    """Return a function that raises if a folder is not a tier."""
    def check(root: str) -> None:
        open_tier(root, metadata).close()
    return check
