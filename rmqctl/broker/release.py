"""Determine the broker release whose rules are used for a store.

The first of these that exists determines the release:

* the requested release
* the release that `init` recorded
* the evidence of the files (`Store.evidence`) and of the broker's configuration file

Without proof there may be several candidates.
"""

from __future__ import annotations

from rmqctl.broker.versions import is_release, release_of, version_for
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class Judged:
    """The release of a store's broker.

    ``release``: the release whose rules apply.
    ``proven``: whether this release is certain.
    ``candidates``: all releases that may start on the store, with ``release`` first.
    """

    release: str
    proven: bool
    candidates: tuple[str, ...]


def judged(store: Store, given: str | None = None) -> Judged:
    """Return the release for a store. ``given``: the requested release, if any.

    Raises: UsageError.
    """
    remembered = store.config.remembered.get("version")
    stated = release_of(given) if given else remembered if is_release(remembered) else None
    if stated is not None:
        return Judged(str(stated), proven=True, candidates=(str(stated),))
    evidence = store.evidence
    release = version_for(evidence.generation).name
    if evidence.proven or evidence.other is None:
        return Judged(release, proven=evidence.proven, candidates=(release,))
    return Judged(release, proven=False, candidates=(release, evidence.other))
