"""In which language people are spoken to: English, or one that has a catalog here (``zh.toml``).

Data (json, jsonl, csv, tsv) is the same whatever the language, and so is what one types or looks
for: names of commands, findings, actions, severities, fields, topics and files, units, times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rmqctl.phrases import Catalog, said

VARIABLE = "RMQCTL_LANG"
_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH, CHINESE = "en", "zh"


@dataclass(frozen=True, slots=True)
class Language:
    """``name``: as in ``--lang``. ``catalog``: English template -> template; English has none."""

    name: str = ENGLISH
    catalog: Catalog = field(default_factory=dict)

    def say(self, value: Any) -> Any:
        """A `Phrase` in this language; anything else is data, and stays as it is."""
        return said(value, self.catalog)

    def caption(self, text: str) -> str:
        """The name of a section, column or value in this language; names are never data."""
        return str(self.say(self.catalog.get(text, text)))


def chosen(given: str | None, environ: Mapping[str, str]) -> str:
    """``given``, else what the first variable that is set says; English for what has no catalog."""
    name = given or next(filter(None, map(environ.get, _VARIABLES)), ENGLISH)
    return CHINESE if name.lower().startswith(CHINESE) else ENGLISH


@cache
def language(name: str) -> Language:
    """The language called ``name``; its catalog is read now."""
    if name == ENGLISH:
        return Language()
    import tomllib
    from importlib.resources import files

    text = files("rmqctl.output").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return Language(name, tomllib.loads(text))
