"""Languages of the output: English, or a language with a catalog here (``zh.toml``).

Data (json, jsonl, csv, tsv) is the same in every language, and so are all words that users type or
search for: names of commands, findings, actions, severities, fields, topics and files, units,
times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rmqctl.phrases import Catalog, translated

VARIABLE = "RMQCTL_LANG"
_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH, CHINESE = "en", "zh"


@dataclass(frozen=True, slots=True)
class Language:
    """A language. ``name``: as in ``--lang``. ``catalog``: English template -> template; empty for
    English.
    """

    name: str = ENGLISH
    catalog: Catalog = field(default_factory=dict)

    def say(self, value: Any) -> Any:
        """Return a `Phrase` in this language; anything else is data and stays unchanged."""
        return translated(value, self.catalog)

    def caption(self, text: str) -> str:
        """Return the name of a section, column or value in this language."""
        return str(self.say(self.catalog.get(text, text)))


def chosen(given: str | None, environ: Mapping[str, str]) -> str:
    """Return ``given``, else the language of the first variable that is set; English if there is no
    catalog.
    """
    name = given or next(filter(None, map(environ.get, _VARIABLES)), ENGLISH)
    return CHINESE if name.lower().startswith(CHINESE) else ENGLISH


@cache
def language(name: str) -> Language:
    """Return the language called ``name``, and read its catalog."""
    if name == ENGLISH:
        return Language()
    import tomllib
    from importlib.resources import files

    text = files("rmqctl.output").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return Language(name, tomllib.loads(text))
