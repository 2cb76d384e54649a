"""Sentences for people, which keep their template and values so that they can be translated.

A `Phrase` is a string with the English text, which JSON, journals and logs contain. Only output for
people translates it (`rmqctl.output.language`). A catalog has a translated template for each
English template, with the same names in braces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self


class Catalog(dict[str, str]):
    """The translated templates of a language, by English template."""

    def text(self, text: str) -> str:
        """Translate a text that is not a `Phrase`. This class treats it as data and returns it
        unchanged.
        """
        return text

    def tidy(self, text: str) -> str:
        """Return a translated text without characters that this language does not need."""
        return text


class Phrase(str):
    """A sentence: ``Phrase("{count:,} message is lost", "{count:,} messages are lost", count=14)``.

    If a second template is given, it is used unless ``count`` is 1, and it is the key in the
    catalog. Values that are phrases are translated, too; other values are the same in every
    language. Without values, the template is the text, braces included.
    """

    __slots__ = ("template", "values")
    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, many: str = "", /, **values: Any) -> Self:
        chosen = many if many and values["count"] != 1 else template
        phrase = super().__new__(cls, chosen.format(**values) if values else chosen)
        phrase.template, phrase.values = many or template, values
        return phrase

    def translated(self, catalog: Catalog) -> str:
        """Return the text in the language of ``catalog``, or in English if the catalog does not
        contain its template.
        """
        template = catalog.get(self.template)
        if template is None:
            return catalog.text(str(self))
        values = {name: translated(value, catalog) for name, value in self.values.items()}
        return template.format(**values) if values else template


class Joined(Phrase):
    """Texts joined with a separator; another language may have a different separator."""

    __slots__ = ()

    def __new__(cls, separator: str, parts: Iterable[str], /) -> Self:
        listed = list(parts)
        joined = super().__new__(cls, separator.join(listed))
        joined.template, joined.values = separator, {"parts": listed}
        return joined

    def translated(self, catalog: Catalog) -> str:
        parts = (translated(part, catalog) for part in self.values["parts"])
        return catalog.get(self.template, self.template).join(parts)

    def __getnewargs__(self) -> tuple[str, list[str]]:  # type: ignore[override]
        return self.template, self.values["parts"]


def translated(value: Any, catalog: Catalog) -> Any:
    """Return a phrase, or any other text that matches a template, in the language of ``catalog``;
    return any other value unchanged.
    """
    if isinstance(value, Phrase):
        return value.translated(catalog)
    return catalog.text(value) if isinstance(value, str) else value


def counted(count: int, singular: str, many: str = "") -> Phrase:
    """Return a number with its noun: ``1 file``, ``1,901 files``. ``many``: the plural, if it is
    irregular.
    """
    return Phrase(f"{{count:,}} {singular}", f"{{count:,}} {many or singular + 's'}", count=count)


def some_of(names: Sequence[str], most: int) -> Phrase:
    """Return a list with at most ``most`` names: ``audit, billing and 3 more``."""
    listed = Joined(", ", names[:most])
    return listed if len(names) <= most else Phrase(
        "{names} and {more:,} more", names=listed, more=len(names) - most)
