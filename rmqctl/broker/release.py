"""The only detector of the release that a start is judged by, for views, predictions and repairs.

What is asked for wins, then what `init` remembered, then what the files prove (`Store.evidence`)
and what the broker's configuration file says. Where nothing proves it, all candidates count.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqctl.broker.versions import is_release, release_of, version_for
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class Judged:
    """``release``: whose rules count. ``candidates``: all that may start, that one first."""

    release: str
    proven: bool
    candidates: tuple[str, ...]


def judged(store: Store, given: str | None = None) -> Judged:
    """Return the release for a store; ``given``: the one that was asked for. UsageError."""
    remembered = store.remembered.get("version")
    stated = release_of(given) if given else remembered if is_release(remembered) else None
    if stated is not None:
        return Judged(str(stated), proven=True, candidates=(str(stated),))
    evidence = store.evidence
    release = version_for(evidence.generation).name
    if evidence.proven or evidence.other is None:
        return Judged(release, proven=evidence.proven, candidates=(release,))
    return Judged(release, proven=False, candidates=(release, evidence.other))
