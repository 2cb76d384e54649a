"""Keeps the bytes of messages from steering a terminal or a spreadsheet.

A body or a key may hold anything: escape sequences, carriage returns, right-to-left overrides,
half surrogates, spreadsheet formulas. Each output format asks this module before it prints text.
"""

from __future__ import annotations

import re

# C0 and C1 controls, DEL, line and paragraph separators, the marks that reorder or hide text,
# and lone surrogates (which no encoder takes).
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_UNSAFE_BUT_NEWLINE = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# What JSON leaves raw although a terminal may act on it: DEL and the C1 controls.
_JSON_UNSAFE = re.compile("[\x7f-\x9f]")

_FORMULA_START = ("=", "+", "-", "@", "\t", "\r")
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    named = _NAMED.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible(text: str) -> str:
    """Return ``text`` on one line, control, reordering and surrogate characters escaped."""
    return _UNSAFE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Like :func:`visible`, but line feeds stay: for text rmqctl itself lays out in lines."""
    return _UNSAFE_BUT_NEWLINE.sub(_escape, text)


def json_visible(encoded: str) -> str:
    r"""Return JSON text in which DEL and C1 controls are ``\u00XX`` escapes; the data is equal."""
    return _JSON_UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", encoded)


def spreadsheet_safe(text: str) -> str:
    """Return ``text`` such that a spreadsheet takes it as text: a formula gets a leading ``'``.

    Texts which are plain numbers are left alone: they mean the same as a number.
    """
    if text.startswith(_FORMULA_START) and not _PLAIN_NUMBER.fullmatch(text):
        return "'" + text
    return text


# What starts markup in GitHub-flavoured Markdown, and nothing else: an underscore inside a word
# is none, nor is a bracket that no parenthesis follows.
_MARKDOWN = re.compile(
    r"[|*`<~]|\\(?=[!-/:-@\[-`{-~])|(?<=\])\(|&(?=[a-zA-Z#])|(?<![^\W_])_|_(?![^\W_])"
)


def markdown_text(text: str) -> str:
    """Return one-line ``text`` such that Markdown shows it as it is."""
    return _MARKDOWN.sub(lambda match: "\\" + match.group(), text)
