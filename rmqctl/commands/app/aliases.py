"""Other words for commands, which no help lists: those of mqadmin with its options, and short ones.

An alias is its command with some options worded otherwise; it has no code of its own. Each leads
to a command that changes nothing. mqadmin does not tell capital letters from small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rmqctl.errors import UsageError

_ARGUMENT = ""
"""In the place of an option: its value is an argument."""
_NOWHERE = "offline there is no name server, cluster or broker to ask: leave it out"


class Alias(NamedTuple):
    """``name`` as mqadmin spells it, and the ``command`` it stands for.

    ``options``: for words of mqadmin ours, with the value that follows; `_ARGUMENT`; or a tuple,
    for a flag. ``first`` and ``last``: what comes before and behind what was typed.
    """

    name: str
    command: tuple[str, ...]
    options: Mapping[str, str | tuple[str, ...]] = {}
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def translated(self, words: Sequence[str]) -> list[str]:
        """The command's own words for those typed behind the alias. UsageError."""
        kept: list[str] = []
        arguments: list[str] = []
        rest = iter(words)
        for word in rest:
            option, joined, value = word.partition("=")
            ours = self.options.get(option)
            if option in ("-n", "--namesrvAddr"):
                raise UsageError(f"{option}: {_NOWHERE}")
            if ours is None:
                kept.append(word)
            elif isinstance(ours, tuple):
                kept += ours
            else:
                given = value if joined else next(rest, None)
                if given is None:
                    raise UsageError(f"Option {option!r} requires an argument.")
                if ours == _ARGUMENT:
                    arguments.append(given)
                else:
                    kept += [ours, given]
        return [*self.first, *kept, *arguments, *self.last]


_TIMES = {"-b": "--since", "--beginTimestamp": "--since", "-e": "--until",
          "--endTimestamp": "--until"}
_ID = {"-i": _ARGUMENT, "--msgId": _ARGUMENT}

_TABLE = (
    Alias("topics", ("config",), last=("topics",)),
    Alias("ls", ("info",)),
    Alias("queryMsgById", ("query", "id"), _ID),
    Alias("queryMsgByUniqueKey", ("query", "id"), _ID, first=("--unique",)),
    Alias("queryMsgByKey", ("query", "key"), {
        "--msgKey": "--key", "-m": "--limit", "--maxNum": "--limit", **_TIMES},
          first=("--limit", "64")),
    Alias("queryMsgByOffset", ("query", "offset"), {
        "--queueId": "--queue", "-o": _ARGUMENT, "--offset": _ARGUMENT}),
    Alias("printMsg", ("read",), {"-s": "--tag", "--subExpression": "--tag", **_TIMES}),
    Alias("consumerProgress", ("offsets",), {
        "--groupName": "--group", "--topicName": "--topic"}),
    Alias("topicStatus", ("offsets",)),
    Alias("exportMetadata", ("config",), {
        "-t": ("--only", "topics"), "--topic": ("--only", "topics"),
        "-g": ("--only", "groups"), "--subscriptionGroup": ("--only", "groups"),
        "-s": ("--special",), "--specialTopic": ("--special",)},
          first=("--output", "json"), last=("metadata",)),
)
ALIASES = {alias.name.lower(): alias for alias in _TABLE}
