"""Where a dispatch may write, and whose metadata it goes on with."""

from __future__ import annotations

import os

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.formats.tiered import names
from rmqctl.tiered.files.reader import is_url
from rmqctl.tiered.tier import Tier

_OF_THE_STORE = ("commitlog", "consumequeue", "batchconsumequeue", "index", "config", "timerlog",
                 "timerwheel", "compaction", "transaction", names.LOCAL_INDEX_FOLDER, ".rmqctl")


def refuse_inside(tier: str, store: str, commitlog_dirs: tuple[str, ...]) -> None:
    """A broker would take clusters' folders among its own for topics or files. RefusedError."""
    if is_url(tier):
        return
    place = os.path.realpath(tier)
    for folder in (*_OF_THE_STORE, *commitlog_dirs):
        taken = os.path.realpath(os.path.join(store, folder))
        if place == taken or place.startswith(f"{taken}{os.sep}"):
            raise RefusedError(f"{tier}: lies in {folder} of the store itself; a tier needs a "
                               f"folder of its own, such as {os.path.join(store, 'tieredstore')}")


def lies_apart(tier: str, store: str) -> bool:
    """Whether a tier's metadata may be another file than the store's."""
    return not is_url(tier) and os.path.realpath(tier) != os.path.realpath(
        os.path.join(store, names.TIER_FOLDER))


def metadata_beside(tier: str, store: str, known: Tier) -> str | None:
    """The metadata in ``config/`` of a tier that lies apart, where that is the tier's; else None.

    It is where a dispatch began it; and where the store's own metadata (``known`` has it) is of
    another tier, which must not lose its only map: one that lies in the store, or, since nothing
    of a tier is in ``tier`` yet, somewhere else.
    """
    own = os.path.join(tier, "config")
    path = os.path.join(own, names.METADATA_NAME)
    if os.path.isdir(own):
        return path
    filled = any(entry.size for tables in known.metadata.segments.values()
                 for table in tables.values() for entry in table.values())
    inside = os.path.join(store, names.TIER_FOLDER)
    return path if filled and (_is_tier(inside) or not _is_tier(tier)) else None


def _is_tier(folder: str) -> bool:
    try:
        return any(names.parse_cluster(one) for one in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from error
