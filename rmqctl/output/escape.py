"""Escaping, so that the bytes of messages cannot control a terminal or a spreadsheet.

A body or a key may contain anything: escape sequences, carriage returns, right-to-left overrides,
lone surrogates, spreadsheet formulas. Each output format escapes text with this module.
"""

from __future__ import annotations

import re
from functools import cache

# The marks that reorder or hide text, and line and paragraph separators. Joiners (U+200C, U+200D)
# are not among them: Persian words and emoji need them.
_HIDING = ("\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
           "\ufff9-\ufffb\U000e0000-\U000e007f")
# Also: C0 and C1 controls, DEL, and lone surrogates (which no encoder accepts).
_UNSAFE = f"[\x00-\x1f\x7f-\x9f\ud800-\udfff{_HIDING}]"
_UNSAFE_BUT_NEWLINE = _UNSAFE.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Characters that JSON leaves raw although a terminal acts on them or shows other text.
_JSON_UNSAFE = f"[\x7f-\x9f{_HIDING}]"

# Characters that start a formula in a spreadsheet: the signs, also in their small and full-width
# forms (East Asian input), after invisible characters (spaces, controls, marks: some programs drop
# them); tab and carriage return alone.
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"
_UNSEEN = f"\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u200c\u200d{_HIDING}"
_FORMULA = f"[\t\r\n]|[{_UNSEEN}]*[{_SIGNS}]"
_PLAIN_NUMBER = r" *[+-]?[0-9]+(\.[0-9]+)? *"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return a compiled pattern. Patterns are compiled at first use, because a run needs only one
    or two.
    """
    return re.compile(text)


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    named = _NAMED.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else (
        f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def visible(text: str) -> str:
    """Return ``text`` on one line, with control, reordering and surrogate characters escaped."""
    return _pattern(_UNSAFE).sub(_escape, text)


def visible_lines(text: str) -> str:
    """Escape ``text`` as :func:`visible` does, but keep line feeds, for text that rmqctl itself has
    divided into lines.
    """
    return _pattern(_UNSAFE_BUT_NEWLINE).sub(_escape, text)


def json_visible(encoded: str) -> str:
    r"""Return equivalent JSON text with ``\uXXXX`` escapes for DEL, C1 controls, and marks that
    reorder or hide text.
    """
    return _pattern(_JSON_UNSAFE).sub(_json_escape, encoded)


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(*[iter(units)] * 2, strict=True))


def spreadsheet_safe(text: str) -> str:
    """Return ``text`` in a form that a spreadsheet treats as text: a formula gets a leading ``'``.

    Plain numbers are unchanged.
    """
    if _pattern(_FORMULA).match(text) and not _pattern(_PLAIN_NUMBER).fullmatch(text):
        return "'" + text
    return text


# Characters that start markup in GitHub-flavoured Markdown: not an underscore inside a word, nor a
# bracket without a parenthesis after it.
_MARKDOWN = (
    r"[|*`<~]|\\(?=[!-/:-@\[-`{-~])|(?<=\])\(|&(?=[a-zA-Z#])|(?<![^\W_])_|_(?![^\W_])"
)


def markdown_text(text: str) -> str:
    """Return one-line ``text`` with Markdown's special characters escaped."""
    return _pattern(_MARKDOWN).sub(lambda match: "\\" + match.group(), text)
