"""Explanations of findings, actions and words of screens, from explanations.toml and
explanations.zh.toml (Chinese).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from rmqctl.checks.findings import CATEGORIES
from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass

FINDING, ACTION, WORD = "finding", "action", "word"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a finding, an action or a word.

    * ``kind``: `FINDING`, `ACTION` or `WORD` (a caption or a state on a screen)
    * ``cause``: the cause of a finding, the effect of an action, or the meaning of a word
    * ``brokers``: how brokers react to the damage
    * ``advice``: what the user should do

    ``severity``, ``meaning``, ``brokers`` and ``advice`` are "" for actions and words.
    """

    name: str
    kind: str
    cause: str
    severity: str = ""
    meaning: str = ""
    group: str = ""
    brokers: str = ""
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``explain``."""
        return {"name": self.name, "kind": self.kind, "severity": self.severity or None,
                "meaning": self.meaning or None, "group": self.group or None, "cause": self.cause,
                "brokers": self.brokers or None, "advice": self.advice or None}


@cache
def explanations(lang: str = "en") -> dict[str, Explanation]:
    """Return all explanations by name: findings in the order of `CATEGORIES`, then actions,
    then words.

    The language is English (``en``) or Chinese (``zh``); ``meaning`` is always in English.
    """
    name = "explanations.toml" if lang == "en" else f"explanations.{lang}.toml"
    text = files("rmqctl.checks").joinpath(name).read_text(encoding="utf-8")
    read = tomllib.loads(text)
    by_name = {explanation.name: explanation for explanation in _findings(read)}
    ordered = {name: by_name[name] for name in CATEGORIES if name in by_name}
    return ordered | {name: Explanation(name, kind, cause)
                      for kind, table in ((ACTION, "actions"), (WORD, "words"))
                      for name, cause in read[table].items()}


def _findings(read: dict[str, Any]) -> Iterator[Explanation]:
    for group in read["group"]:
        for name, cause in group["members"].items():
            category = CATEGORIES[name]
            yield Explanation(name, FINDING, cause, category.severity, category.meaning,
                              group["title"], group["brokers"].strip(),
                              group.get("advice_for", {}).get(name, group["advice"].strip()))


def explain(name: str, lang: str = "en") -> Explanation:
    """Return the explanation of a finding, an action or a word.

    ``name``: the name or a unique prefix of the name; words count only if no other name has the
    prefix.
    Raises: UsageError with similar names for any other name.
    """
    by_name = explanations(lang)
    wanted = name.strip().lower()
    if wanted in by_name:
        return by_name[wanted]
    begun = [candidate for candidate in by_name if wanted and candidate.startswith(wanted)]
    begun = [candidate for candidate in begun if by_name[candidate].kind != WORD] or begun
    if len(begun) == 1:
        return by_name[begun[0]]
    near = difflib.get_close_matches(wanted, by_name, n=3, cutoff=0.5)
    raise UsageError(f"no finding, action or word is named {name!r}" + (
        f"; did you mean {' or '.join(near)}?" if near else "; `rmqctl explain` lists all names"))
