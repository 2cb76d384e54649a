"""Sentences for people that remember what they are made of, so that they can be said in another
language.

A `Phrase` is its English text, wherever it goes: JSON, journals, logs. Only who shows it to people
asks for it in another language (`rmqctl.output.language`), and gives a catalog: English template ->
template, with the same names in braces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

Catalog = Mapping[str, str]


class Phrase(str):
    """``Phrase("{count:,} message is lost", "{count:,} messages are lost", count=14)``.

    The second template is taken unless the value ``count`` is 1; it is the name in a catalog where
    there are two. Values may be phrases themselves; whatever else they are, they are data, and the
    same in every language. Without values the text is taken as it is, braces and all.
    """

    __slots__ = ("template", "values")
    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, many: str = "", /, **values: Any) -> Self:
        chosen = many if many and values["count"] != 1 else template
        made = super().__new__(cls, chosen.format(**values) if values else chosen)
        made.template, made.values = many or template, values
        return made

    def said(self, catalog: Catalog) -> str:
        """The text in the language of ``catalog``; in English where that does not have it."""
        template = catalog.get(self.template)
        if template is None:
            return str(self)
        values = {name: said(value, catalog) for name, value in self.values.items()}
        return template.format(**values) if values else template


class Joined(Phrase):
    """Texts with a separator between them, which may be another one in another language."""

    __slots__ = ()

    def __new__(cls, separator: str, parts: Iterable[str], /) -> Self:
        made = list(parts)
        joined = super().__new__(cls, separator.join(made))
        joined.template, joined.values = separator, {"parts": made}
        return joined

    def said(self, catalog: Catalog) -> str:
        parts = (said(part, catalog) for part in self.values["parts"])
        return catalog.get(self.template, self.template).join(parts)

    def __getnewargs__(self) -> tuple[str, list[str]]:  # type: ignore[override]
        return self.template, self.values["parts"]


def said(value: Any, catalog: Catalog) -> Any:
    """A phrase in the language of ``catalog``; anything else as it is."""
    return value.said(catalog) if isinstance(value, Phrase) else value


def counted(count: int, one: str, many: str = "") -> Phrase:
    """A count with its noun: ``1 file``, ``1,901 files``; ``many`` where an s does not do."""
    return Phrase(f"{{count:,}} {one}", f"{{count:,}} {many or one + 's'}", count=count)


def some_of(names: Sequence[str], most: int) -> Phrase:
    """``audit, billing and 3 more``: at most so many of them."""
    listed = Joined(", ", names[:most])
    return listed if len(names) <= most else Phrase(
        "{names} and {more:,} more", names=listed, more=len(names) - most)
