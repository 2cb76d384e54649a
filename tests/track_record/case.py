"""What an entry of the track record is: a user's issue, and a store in that state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ISSUES = "https://github.com/apache/rocketmq/issues/"


@dataclass(frozen=True, slots=True)
class Case:
    """One store. ``base`` is the golden root it is made from, ``make`` does the rest to a copy.

    ``saw`` is what the user reported, ``state`` how the store shows it, and how near it comes to
    the user's: a thread seldom says every byte. ``finds`` are the categories of `rmqctl verify`,
    infos left out; ``versions`` the brokers that `preflight` is asked about. ``shows`` are further
    commands, without ``rmqctl``, where `verify` is not the one that answers the user. ``refuses``
    are the versions of ``versions`` that do not start on the store, read from the broker's source.
    ``left``: why `rmqctl recover` leaves something to be done by hand; "" where it does not.
    """

    issue: int
    slug: str
    title: str
    saw: str
    state: str
    base: str
    make: Callable[[Path], None]
    finds: tuple[str, ...]
    versions: tuple[str, ...] = ("4.9.3", "5.3.3")
    options: str = ""
    shows: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    left: str = ""

    @property
    def name(self) -> str:
        """``6904-empty-last-file``: of the store's folder and of the page."""
        return f"{self.issue}-{self.slug}"

    @property
    def link(self) -> str:
        return f"[apache/rocketmq#{self.issue}]({ISSUES}{self.issue})"


def as_it_is(root: Path) -> None:
    """The golden set is already in the state."""
