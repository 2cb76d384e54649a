"""Mask parts of a report on request: the file does not contain a masked value in any form.

Any text of a store may contain a masked value; for example, a path may contain a topic. So all
texts go through `Mask.text`. Findings' details, bodies, properties and addresses have separate
methods.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

from rmqctl.errors import UsageError
from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX
from rmqctl.output.escape import visible
from rmqctl.store.redaction import ADDRESSES, QUOTED

KINDS = ("bodies", "properties", "addresses", "topics", "groups", "paths")
HIDDEN = "▒▒▒▒"
_WORD = re.compile(r"[\w%|.@-]+")
_KEYS = re.compile(r"(\$\.\w+\.).*")
"""The path of a value in a configuration file (``$.topicConfigTable.orders.perm``).

All text after the first name is masked: it may contain a topic or group that occurs nowhere else.
"""
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)


def parse_kinds(text: str | None) -> frozenset[str]:
    """Return the kinds in ``bodies,addresses`` or ``all``.
    Raises: UsageError for a word that is not in `KINDS`.
    """
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if words == ["all"]:
        return frozenset(KINDS)
    for word in words:
        if word not in KINDS:
            raise UsageError(f"--redact {text}: invalid kind {word!r}; valid kinds: "
                             f"{', '.join(KINDS)}, all")
    return frozenset(words)


class Mask:
    """Masks the given kinds of `KINDS`.

    * ``topics``, ``groups``: all names that may occur in the report; each name gets one pseudonym
    * ``roots``: the path of the store, as typed and in full
    * ``others``: further paths that the report may name
    """

    def __init__(self, kinds: Iterable[str], topics: Iterable[str] = (),
                 groups: Iterable[str] = (), roots: Iterable[str] = (),
                 others: Iterable[str] = ()) -> None:
        self.kinds = frozenset(kinds)
        self._names: dict[str, str] = {}
        topics, groups = list(dict.fromkeys(topics)), list(dict.fromkeys(groups))
        if "groups" in self.kinds:
            groups = list(dict.fromkeys((*groups, *(
                topic[len(prefix):] for prefix in _OF_GROUPS for topic in topics
                if topic.startswith(prefix) and len(topic) > len(prefix)))))
            self._names |= {name: f"group-{number}" for number, name in enumerate(groups, 1)}
        if "topics" in self.kinds:
            plain = [topic for topic in topics if topic not in self._names]
            self._names |= {name: f"topic-{number}" for number, name in enumerate(plain, 1)}
        if "topics" in self.kinds or "groups" in self.kinds:  # %RETRY%GROUP names a group
            for group in groups:
                for prefix in _OF_GROUPS:
                    shown = self._names.get(group, group if "topics" not in self.kinds else HIDDEN)
                    self._names.setdefault(prefix + group, prefix + shown)
                    if "groups" in self.kinds:
                        self._names[prefix + group] = prefix + shown
        # Names that are not a single word are searched for literally, the longest first.
        odd = sorted((visible(name) for name in self._names
                      if not _WORD.fullmatch(name)), key=len, reverse=True)
        self._odd = re.compile("|".join(map(re.escape, filter(None, odd)))) if any(odd) else None
        self._shown = {visible(name): pseudonym for name, pseudonym in self._names.items()}
        self._paths = {visible(form): shown for paths, shown in ((others, "PATH"), (roots, "STORE"))
                       for path in paths if len(path) > 1 for form in _spellings(path)}
        paths = sorted(self._paths, key=len, reverse=True) if "paths" in self.kinds else []
        self._path = re.compile("|".join(map(_as_path, paths))) if paths else None

    def __contains__(self, kind: str) -> bool:
        return kind in self.kinds

    def text(self, text: str) -> str:
        """Return a text as one line that is safe to show, with masked values replaced."""
        shown = visible(text)
        if self._path is not None:
            shown = self._path.sub(lambda match: self._paths[match.group()], shown)
        if self.kinds & {"topics", "groups"}:
            shown = _KEYS.sub(rf"\1{HIDDEN}", shown)
        if self._shown:
            if self._odd is not None:
                shown = self._odd.sub(lambda match: self._shown[match.group()], shown)
            shown = _WORD.sub(self._word, shown)
        if "addresses" in self.kinds:
            shown = ADDRESSES.sub(HIDDEN, shown)
        return shown

    def _word(self, match: re.Match[str]) -> str:
        word = match.group()
        replacement = self._shown.get(word)
        if replacement is not None:
            return replacement
        bare = word.rstrip(".")  # the end of a sentence
        return self._shown[bare] + word[len(bare):] if bare in self._shown else word

    def detail(self, text: str, category: str) -> str:
        """Return the detail of a finding, masked. A ``property-number`` finding quotes a property,
        which is masked as well.
        """
        if "properties" in self.kinds and category == "property-number":
            text = QUOTED.sub(HIDDEN, text)
        return self.text(text)

    def body(self, text: str) -> str:
        return HIDDEN if "bodies" in self.kinds else self.text(text)

    def property(self, text: str) -> str:
        return HIDDEN if text and "properties" in self.kinds else self.text(text)

    def address(self, text: str) -> str:
        """Return a host, or an id that contains a host, masked on request."""
        return HIDDEN if text and "addresses" in self.kinds else self.text(text)


def _spellings(path: str) -> tuple[str, ...]:
    """Return the forms in which a path may occur: unchanged, quoted for a shell, and quoted after
    ``--option=``.
    """
    return path, shlex.quote(path), path.replace("'", "'\"'\"'")


def _as_path(path: str) -> str:
    """Return a regular expression for a path.

    A path without a separator may be part of an ordinary word, so it matches only as a separate
    word.
    """
    return re.escape(path) if os.sep in path else rf"(?<![\w./-]){re.escape(path)}(?![\w.-])"
