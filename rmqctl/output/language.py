"""Languages of the output: English, or a language with a catalog in this package (``zh.toml``).

Data (json, jsonl, csv, tsv) is the same in every language. All words that users type or search for
are also the same: names of commands, findings, actions, severities, topics and files, units, times.
A `Phrase` is translated with its values. Any other text is translated by the template that it
matches (`rmqctl.output.texts`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import pairwise
from typing import Any

from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Catalog, Phrase

VARIABLE = "RMQCTL_LANG"
_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
_OPTION = "--lang"
_FORMATS = ("-o", "--output")
_FOR_PROGRAMS = ("json", "jsonl", "csv", "tsv")
ENGLISH, CHINESE = "en", "zh"
_DATA = frozenset({"body", "key", "keys", "tags", "properties", "properties_raw", "topic", "group",
                   "file", "path", "name", "store", "value", "command", "queue", "host", "hex",
                   "text", "record", "state", "status", "type", "kind", "category", "action",
                   "placement", "effect"})
"""Names of fields whose values are never translated, because they come from the store or users type
them.
"""
_SENTENCE = re.compile(r"(?<![\w/.:=@%-])[A-Za-z][a-z']+(?: [(]?[a-z][a-z']+){2,}(?![\w/=-])")
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_TEXTS = frozenset({"cause", "content", "detail", "error", "fault", "from", "help", "lost",
                    "meaning", "note", "problem", "reason", "remark", "result", "retries", "target",
                    "to", "troubles", "what", "where", "why"})
"""Names of the columns with rmqctl's own texts. All other columns may contain message data."""
IN_ENGLISH = Phrase("This text is not translated yet.")
_ENTRY = re.compile(r'^("(?:[^"\\]|\\.)*") = ("(?:[^"\\]|\\.)*")$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Language:
    """A language. ``name``: the value of ``--lang``. ``catalog``: translated templates by English
    template; empty for English.
    """

    name: str = ENGLISH
    catalog: Catalog = field(default_factory=Catalog)

    def say(self, value: Any) -> Any:
        """Return a `Phrase` in this language; any other value is data, and is returned
        unchanged.
        """
        return value if not isinstance(value, Phrase) else self.catalog.tidy(
            value.translated(self.catalog))

    def text(self, text: str) -> str:
        """Return a text for people in this language. The text may contain data."""
        return self.catalog.text(text) if type(text) is str else str(self.say(text))

    def lacks(self, text: str) -> bool:
        """Return whether a text for people lacks a translation and remains an English sentence."""
        return self.name != ENGLISH and bool(_SENTENCE.search(_QUOTED.sub("", self.text(text))))

    def cell(self, column: str, value: Any) -> Any:
        """Return the value of a table cell in this language. Texts are translated only in columns
        that are known to contain rmqctl's own texts.
        """
        return self.value(column, value) if column in _TEXTS else self.say(value)

    def value(self, name: str, value: Any) -> Any:
        """Return the value of a field in this language. A text is translated if it matches a
        template, unless the field contains data from the store.
        """
        if isinstance(value, str) and name not in _DATA and "." not in name:
            return self.text(value)
        return self.say(value)

    def caption(self, text: str) -> str:
        """Return the name of a section, column or value in this language."""
        return str(self.say(self.catalog.get(text) or self.text(text)))


def chosen(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the language that ``given`` names. If it is empty, the first environment variable that
    is set names the language. Return English if that language has no catalog.
    """
    name = given or next(filter(None, map(environ.get, _VARIABLES)), ENGLISH)
    return CHINESE if name.lower().startswith(CHINESE) else ENGLISH


def requested(words: Sequence[str], environ: Mapping[str, str]) -> Language:
    """Return the language for help and errors, before the options are parsed. Environment variables
    are ignored if the output format is for programs.
    """
    given, form = None, ""
    for word, following in pairwise((*words, "")):
        if word == _OPTION:
            given = following
        elif word.startswith(f"{_OPTION}="):
            given = word.partition("=")[2]
        elif word in _FORMATS:
            form = following
    return language(chosen(given, {} if form in _FOR_PROGRAMS else environ))


@cache
def language(name: str) -> Language:
    """Return the language called ``name``, with its catalog."""
    if name == ENGLISH:
        return Language()
    from importlib.resources import files

    from rmqctl.output.texts import TextCatalog

    text = files("rmqctl.output").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    # Its lines are also JSON, which Python reads 30 times faster than TOML.
    entries = ",".join(f"{key}:{translation}" for key, translation in _ENTRY.findall(text))
    return Language(name, TextCatalog(json.loads(f"{{{entries}}}")))
