"""Options for finding messages by key, in a store or in a tier."""

from __future__ import annotations

from datetime import tzinfo
from typing import Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import SINCE, UNTIL, RequiredTopic
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_time_range


@dataclass(frozen=True, kw_only=True)
class KeyQuery(OptionGroup):
    """Options that select messages in a store by key."""

    topic: RequiredTopic
    key: Annotated[str, typer.Option("--key", "-k", metavar="KEY", help="Message key.")]
    begin: Annotated[str | None, typer.Option("--since", "--begin", **SINCE)] = None
    end: Annotated[str | None, typer.Option("--until", "--end", **UNTIL)] = None
    most: Annotated[int, typer.Option(
        "--limit", "--max", metavar="N", min=1,
        help="At most this many messages; a broker returns at most 64.")] = 32
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); default: both.",
    )] = None
    raw: Annotated[bool, typer.Option(
        "--raw", help="Also show messages of other keys with the same hash.")] = False

    def window(self, tz: tzinfo) -> tuple[int, int]:
        """Return the first and the last store time to search, in epoch ms. Without ``--since`` the
        range has no start, without ``--until`` no end. Raises: UsageError.
        """
        from rmqctl.store.query.lookup import FOR_EVER

        first, last = parse_time_range(self.begin, self.end, tz=tz)
        return first or 0, FOR_EVER if last is None else last

    @property
    def nothing(self) -> str:
        """Return the text to print if no message was found."""
        return f"no message of topic {self.topic} with the key {self.key}"


@dataclass(frozen=True, kw_only=True)
class TierKeyQuery(KeyQuery):
    """Options that select messages of a tier by key."""

    most: Annotated[int, typer.Option(
        "--limit", "--max", metavar="N", min=1,
        help="At most this many messages, the newest.")] = 32
