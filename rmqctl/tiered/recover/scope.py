"""Which part of a tier is one broker's, and where that broker keeps its metadata."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from rmqctl.errors import FormatError, NotAStoreError, UsageError
from rmqctl.formats.tiered.old_metadata import read
from rmqctl.tiered.files.metadata_location import home_of, place_of
from rmqctl.tiered.files.reader import is_url
from rmqctl.tiered.tier import Tier


@dataclass(frozen=True, slots=True)
class Scope:
    """One broker's part. ``metadata_path`` may lead to nothing yet; ``home`` is the broker's
    local root.
    """

    cluster: str
    broker: str
    metadata_path: str
    home: str


def open_tier(root: str, metadata: str | None) -> Tier:
    """A tier to be healed: its metadata may be lost. UsageError, NotAStoreError."""
    if is_url(root):
        raise UsageError(f"{root}: only a tier in a folder can be changed")
    there = metadata is not None and os.path.lexists(metadata)
    tier = Tier.open(root, metadata if there else None)
    path = metadata or place_of(tier.name)
    if path is not None:
        tier.metadata_path, tier.home = path, home_of(path)
    return tier


def scope_of(tier: Tier, cluster: str | None, broker: str | None) -> Scope:
    """The broker that is meant: the one that is named, the only one, or the one that metadata is
    of. UsageError.
    """
    if tier.metadata_path is None or tier.home is None:
        raise UsageError(f"{tier.name}: where its metadata lay cannot be told: name the file "
                         "with --metadata")
    owners = {(one.cluster, one.broker) for one in tier.found.queues} | set(tier.found.indexes)
    found = sorted(one for one in owners if cluster in (None, one[0])
                   and broker in (None, one[1]))
    if len(found) > 1:
        mine = _brokers(tier.metadata_path)
        found = [one for one in found if one[1] in mine] or found
    if not found:
        if owners and (cluster or broker):
            raise UsageError(f"{tier.name}: there is no {cluster or ''}/{broker or ''} in it")
        raise NotAStoreError(f"{tier.name}: no file of a tier is in it")
    if len(found) > 1:
        every = ", ".join(f"{one}/{other}" for one, other in found)
        raise UsageError(f"{tier.name} has the files of several brokers ({every}), and each has "
                         "metadata of its own: name one with --broker (and --cluster)")
    return Scope(*found[0], tier.metadata_path, tier.home)


def _brokers(path: str) -> set[str]:
    found: set[str] = set()
    for name in (path, f"{path}.bak"):
        try:
            with open(name, "rb") as file:
                metadata = read(file.read())
        except (OSError, FormatError):
            continue
        for table in metadata.segments.values():
            found.update(one.partition("/")[0] for one in table)
        for queues in metadata.queues.values():
            found.update(one.broker_name for one in queues.values())
    return found


def check_root(metadata: str | None) -> Callable[[str], object]:
    """What raises where there is no tier to repair."""
    def check(root: str) -> None:
        open_tier(root, metadata).close()
    return check
