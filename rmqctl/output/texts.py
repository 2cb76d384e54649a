"""Translate finished English texts, each by the template from which it was built.

Library code builds English texts with f-strings: details of findings, reasons, errors. Only
human-readable output is translated. The catalog's template that matches a text is translated, and
the values in the text are inserted into the translation. In the catalog, the values of an f-string
are numbered: ``f"{count:,} files in {folder}"`` is ``{0:,} files in {1}``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from rmqctl.phrases import Catalog

_NUMBER = r"-?[\d,]+(?:\.\d+)?"
_ANYTHING = r".*?"
_LETTERS = 4
"""Minimum number of letters in a template; texts are not compared with templates that have
fewer.
"""
_JOINTS = ("\n", "; ", ". ", ": ", " (", ", ")
"""Separators between texts that were joined."""
_SPECIFIC, _BEGINNING = 24, 12
_START = 20
"""Bonus for a template that does not begin with a value, in characters of template text (see
`Texts._templates`).
"""
_BLANK = re.compile("(?<=[\u3001-\u9fff\uff01-\uff5e]) (?=[\u3001-\u9fff\uff01-\uff5e])")
"""Matches a blank between two East Asian characters. The translation of an English word leaves such
blanks, which must be removed.
"""
_PROSE = re.compile(r"(?<![\w/.-])[a-z]{2,}(?: [a-z]{2,}){2,}(?![\w/.-])")
_SINGULAR = re.compile(r"1 ([a-z ]+[a-z])")
_CACHED = 4096
_MAX_JOINTS = 40
"""Maximum number of separators in a text that is translated in parts."""


class _Template(NamedTuple):
    anchor: str
    """The longest text between two values of the template."""
    pattern: str
    key: str
    is_long: bool
    """True if the template is specific enough to be used even if a value remains English."""


def pieces(template: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield the pieces of a template: a text, and the name and the format of the value after the
    text (None and "" if no value follows).
    """
    for text, name, form, _ in string.Formatter().parse(template):
        yield text, name, form or ""


def filled(template: str, values: dict[str, str]) -> str:
    """Return a template with its values replaced by texts."""
    return "".join(text + ("" if name is None else values[name])
                   for text, name, _ in pieces(template))


class TextCatalog(Catalog):
    """A catalog that also translates finished texts."""

    def text(self, text: str) -> str:
        """Translate an English text; return it unchanged if no template matches.

        A single word is not translated, because it may be a name in the store.
        """
        if " " not in text or (not text.isprintable() and "\n" not in text):
            return text
        return self._search(text) or text

    def tidy(self, text: str) -> str:
        return text if text.isascii() else _BLANK.sub("", text)

    @cached_property
    def _search(self) -> Callable[[str], str | None]:
        return lru_cache(_CACHED)(self._find)

    def _find(self, text: str) -> str | None:
        constant = self.get(text)
        if constant is not None:
            return constant
        for template in self._templates:
            if template.anchor in text and (
                    match := _compiled(template.pattern).fullmatch(text)):
                values = {name[1:]: self.text(value or "")
                          for name, value in match.groupdict().items()}
                if template.is_long or not any(map(_PROSE.search, values.values())):
                    return self.tidy(filled(self[template.key], values))
        return self._single(text) or self._by_parts(text)

    def _single(self, text: str) -> str | None:
        """Translate a text such as ``1 entry``; the catalog contains only ``{count:,} entries``."""
        match = _SINGULAR.fullmatch(text)
        if match is None:
            return None
        noun = match[1]
        plurals = [f"{noun}s", f"{noun[:-1]}ies"] if noun.endswith("y") else [
            f"{noun}s", f"{noun}es"]
        for plural in plurals:
            translation = self.get(f"{{count:,}} {plural}")
            if translation is not None:
                return filled(translation, {"count": "1"})
        return None

    def _by_parts(self, text: str) -> str | None:
        """Translate each part of a joined text. Return None if nothing was translated."""
        if sum(map(text.count, _JOINTS)) > _MAX_JOINTS:
            return None
        for joint in _JOINTS:
            first, between_parts, rest = text.partition(joint)
            if not between_parts or not first or not rest:
                continue
            closed = joint == " (" and rest.endswith(")")
            if joint == " (" and not closed:
                continue
            rest = rest.removesuffix(")") if closed else rest
            translated, said_rest = self.text(first), self.text(rest)
            if (translated, said_rest) != (first, rest):
                between = self.get(joint, joint)
                return translated + between + said_rest + (self.get(")", ")") if closed else "")
        return None

    @cached_property
    def _templates(self) -> list[_Template]:
        """Return the templates with values, the most specific first. More text, and text at the
        beginning, make a template more specific.
        """
        templates = []
        for key in self:
            parts = list(pieces(key))
            own = "".join(text for text, _, _ in parts)
            if all(name is None for _, name, _ in parts) or sum(
                    map(str.isalpha, own)) < _LETTERS:
                continue
            start = _START if len(parts[0][0]) >= _LETTERS else 0
            templates.append((len(own) + start, _Template(
                max((text for text, _, _ in parts), key=len), _pattern(parts), key,
                len(own) >= _SPECIFIC or len(parts[0][0]) >= _BEGINNING)))
        return [template for _, template in sorted(templates, key=lambda ranked: -ranked[0])]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


def _pattern(parts: list[tuple[str, str | None, str]]) -> str:
    seen: set[str] = set()
    pattern = is_open = ""
    for text, name, form in parts:
        pattern += re.escape(text)
        if name is None:
            continue
        if name in seen:
            pattern += f"(?P=_{name})"
            continue
        seen.add(name)
        if form in (",", "d"):
            pattern += f"(?P<_{name}>{_NUMBER})"
            continue
        # What a value ends with is looked for once: hostile names must not take exponential time.
        pattern += f"{is_open}(?>(?P<_{name}>{_ANYTHING})"
        is_open = ")"
    head, opened, last = pattern.rpartition("(?>")
    return f"{head}{last}" if opened else pattern
