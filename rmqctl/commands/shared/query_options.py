"""Options of the queries by key, which a store and a tier both answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import SINCE, UNTIL, RequiredTopic
from rmqctl.parse_values import parse_time_range


@dataclass(frozen=True, kw_only=True)
class KeyQuery(OptionGroup):
    """Which messages with which key."""

    topic: RequiredTopic
    key: Annotated[str, typer.Option("--key", "-k", metavar="KEY", help="The key.")]
    begin: Annotated[str | None, typer.Option("--since", "--begin", **SINCE)] = None
    end: Annotated[str | None, typer.Option("--until", "--end", **UNTIL)] = None
    most: Annotated[int, typer.Option(
        "--limit", "--max", metavar="N", min=1,
        help="At most this many; a broker gives 64 and no more.")] = 32
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); else both.",
    )] = None
    raw: Annotated[bool, typer.Option(
        "--raw", help="Keep messages of other keys that only share the hash.")] = False

    def window(self, tz: tzinfo) -> tuple[int, int]:
        """(from, to) in epoch ms, both included; all times where none was given. UsageError."""
        from rmqctl.store.query.lookup import FOR_EVER

        first, last = parse_time_range(self.begin, self.end, tz=tz)
        return first or 0, FOR_EVER if last is None else last

    @property
    def nothing(self) -> str:
        """What there is none of, in words."""
        return f"no message of topic {self.topic} with the key {self.key}"


@dataclass(frozen=True, kw_only=True)
class TierKeyQuery(KeyQuery):
    """Which messages of a tier with which key."""

    most: Annotated[int, typer.Option(
        "--limit", "--max", metavar="N", min=1,
        help="At most this many: where there are more, the newest.")] = 32
