"""SQL92 filters, compiled and evaluated as a broker does (spec: remoting.md §3.1).

Grammar and comparisons are those of the module `filter` of 5.3.3; 4.9.3 lacks CONTAINS, STARTSWITH
and ENDSWITH. The broker's oddities are reproduced:

* A property is text. In a comparison with a number, the text must be a number of the same type (32
  bits, 64 bits, double).
* If two values cannot be compared, the entire evaluation ends, even within NOT and OR. The message
  then does not match.
* Text after a complete condition is ignored (``a = 1 b = 2`` is ``a = 1``).
* ``0.0`` does not compile.

The cost is bounded, because filters and properties come from untrusted clients. The time to compile
a filter is proportional to its length. The time to match a message is proportional to the number of
conditions. Only parentheses cause recursion, up to a limit.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

from rmqctl.broker import sql92_values as values
from rmqctl.broker.sql92_values import ORDERS, TEXT_TESTS, IncomparableError, Value
from rmqctl.errors import UsageError

MAX_TEXT = 64 << 10
"""Maximum number of characters of a filter."""
MAX_DEPTH = 100
"""Maximum depth of nested parentheses, including consecutive signs and NOTs."""

class Filter:
    """A compiled filter. `compile_filter` creates it."""

    __slots__ = ("_steps",)

    def __init__(self, steps: list[tuple[_Step, Any]]) -> None:
        self._steps = steps

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a broker delivers a message with these properties. A message is not
        delivered if the evaluation fails.
        """
        try:
            return self._value(properties) is True
        except IncomparableError:
            return False

    def _value(self, properties: Mapping[str, str]) -> Value:
        stack: list[Value] = []
        steps, at = self._steps, 0
        while at < len(steps):
            step, operand = steps[at]
            at += 1
            if step == "property":
                stack.append(properties.get(operand))
            elif step == "constant":
                stack.append(operand)
            elif step == "one":
                stack[-1] = operand(stack[-1])
            elif step == "two":
                second = stack.pop()
                stack[-1] = operand(stack[-1], second)
            elif step == "again":
                stack.append(stack[-operand])
            else:
                decided, skipped = operand
                if stack[-1] is decided:
                    at += skipped
        return stack[0]


_Step = Literal["property", "constant", "one", "two", "again", "decided"]
"""A step of the stack machine:

* ``property``, ``constant``: push a property or a constant.
* ``one``, ``two``: replace the last value, or the last two values, with the result of a function.
* ``again``: push an earlier value again.
* ``decided``: skip steps if the last value already decides the result.
"""


def compile_filter(text: str) -> Filter:
    """Return the compiled filter of a subscription.

    Raises: UsageError, with the position of the error, if a broker's parser rejects the filter, or
    if it exceeds `MAX_TEXT` or `MAX_DEPTH`.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"the filter has {len(text)} characters; at most {MAX_TEXT} are "
                         "allowed")
    return _Compiler(text).compiled()


_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS",
                       *TEXT_TESTS})
_LITERALS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_OPERANDS = frozenset({"(", "name", "text", "whole", "double", *_LITERALS})
_TOKEN = re.compile(r"""
    (?P<blank> [ \t\n\r\f]++ | /\*.*?\*/ )
  | (?P<double> [0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)? | \.[0-9]++(?:[eE][+-]?[0-9]++)?
              | [0-9]++[eE][+-]?[0-9]++ )
  | (?P<whole> 0 | [1-9][0-9]*+[lL]? )
  | (?P<text> '[^']*+(?:''[^']*+)*' )  # '''x without another quote begins with ''
  | (?P<name> [A-Za-z_$][A-Za-z0-9_$]*+ )
  | (?P<sign> <= | <> | >= | [<>=(),+-] )
""", re.VERBOSE | re.DOTALL)
_LINE_END = re.compile(r"[\n\r]")


class _Token(NamedTuple):
    """A token.

    ``kind``: the name of a group in `_TOKEN`, a keyword, a sign, or "end".
    ``at``: position of the token in the filter.
    """

    kind: str
    text: str
    at: int


class _Term(NamedTuple):
    """A parsed part of a filter. ``at``: its position in the filter; ``value``: the value of a
    constant.
    """

    kind: Literal["constant", "property", "negative", "condition"]
    at: int
    value: Value = None

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


_OR, _AND, _EQUALITY, _COMPARISON = range(4)
"""Precedence of operators; the first binds most loosely."""


class _Compiler:
    """The parser. It emits the steps of a filter while it parses, the operands before the
    operator.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._steps: list[tuple[_Step, Any]] = []
        self._depth = 0
        self._token = self._read()

    def compiled(self) -> Filter:
        self._as_condition(self._expression(_OR))
        return Filter(self._steps)

    def _refuse(self, at: int, why: str) -> NoReturn:
        raise UsageError(f"invalid filter at character {at + 1}: {why}")

    # Tokens, one token of look-ahead

    def _read(self) -> _Token:
        while True:
            at = self._position
            if at == len(self._text):
                return _Token("end", "", at)
            if at < self._last_line_end and self._text.startswith("--", at):
                match = _LINE_END.search(self._text, at)  # without a line end it is two signs
            else:
                match = _TOKEN.match(self._text, at)
            if match is None:
                self._refuse(at, f"unexpected character {self._text[at]!r}"
                             if self._text[at] != "'" else "unterminated string")
            self._position = match.end()
            kind, word = match.lastgroup, match[0]
            if kind == "name" and word.upper() in _KEYWORDS:
                return _Token(word.upper(), word, at)
            if kind not in (None, "blank"):
                return _Token(word if kind == "sign" else str(kind), word, at)

    def _take(self, *kinds: str) -> _Token:
        """Return the next token, which must be of one of these kinds."""
        token = self._token
        if kinds and token.kind not in kinds:
            wanted = " or ".join("a quoted string" if kind == "text" else kind for kind in kinds)
            self._refuse(token.at, f"expected {wanted}, got {_shown(token)}")
        self._token = self._read()
        return token

    def _took(self, kind: str) -> bool:
        if self._token.kind != kind:
            return False
        self._take()
        return True

    def _take_text(self) -> str:
        return _unquoted(self._take("text"))

    # Grammar

    def _expression(self, loosest: int) -> _Term:
        """Parse an operand and the operators after it that bind at least as tightly as
        ``loosest``.
        """
        start = len(self._steps)
        left = self._operand()
        # operators that bind tighter than the last one were read by its operand
        tightest = _COMPARISON
        while True:
            sign = self._token.kind
            if sign in ("OR", "AND"):
                binding = _OR if sign == "OR" else _AND
            elif sign in ("=", "<>", "IS"):
                binding = _EQUALITY
            elif sign in ORDERS or sign in TEXT_TESTS or sign in ("NOT", "BETWEEN", "IN"):
                binding = _COMPARISON
            else:
                return left
            if not loosest <= binding <= tightest:
                return left
            tightest = binding
            if binding == _COMPARISON:
                left = self._comparison(left, start)
            elif binding == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._logic(left, self._take().kind == "OR", binding + 1)

    def _logic(self, left: _Term, is_or: bool, binding: int) -> _Term:
        self._as_condition(left)
        place = self._unless()
        self._as_condition(self._expression(binding))
        self._join(place, is_or, values.either if is_or else values.both)
        return _Term("condition", left.at)

    def _unless(self) -> int:
        """Emit a step that skips the second operand if the first one decides the result; return its
        number for `_join`.
        """
        self._steps.append(("decided", None))
        return len(self._steps) - 1

    def _join(self, place: int, decided: bool | None, holds: values.Judge) -> None:
        """Emit the step that combines two operands with the function ``holds``.

        Complete step number ``place`` (see `_unless`): the step skips the second operand if the
        first operand equals ``decided``.
        """
        self._steps.append(("two", holds))
        self._steps[place] = "decided", (decided, len(self._steps) - place - 1)

    def _equality(self, left: _Term) -> _Term:
        token = self._take("=", "<>", "IS")
        if token.kind == "IS":
            negated = self._took("NOT")
            self._take("NULL")
            self._steps.append(("one", partial(operator.is_not if negated else operator.is_, None)))
            return _Term("condition", left.at)
        right = self._expression(_COMPARISON)
        for term in left, right:
            if term.kind == "constant" and term.value is None:
                self._refuse(term.at, "NULL cannot be compared; use IS NULL")
        if (left.kind == right.kind == "constant" and isinstance(left.value, bool)
                and not isinstance(right.value, bool)):
            self._refuse(left.at, "TRUE and FALSE cannot be compared with a number or a string")
        self._steps.append(("two", values.equal if token.kind == "=" else values.not_equal))
        return _Term("condition", left.at)

    def _comparison(self, left: _Term, start: int) -> _Term:
        """Parse a comparison. ``start``: index of the first step of ``left``."""
        negated = self._took("NOT")
        kinds = ("BETWEEN", "IN", *TEXT_TESTS)
        token = self._take(*kinds) if negated else self._take()
        if token.kind in ORDERS:
            self._check_ordered(left)
            self._ordered(token.kind)
        elif token.kind == "BETWEEN":
            self._between(left, negated)
        elif token.kind == "IN":
            if left.kind != "property":
                self._refuse(token.at, "expected a property before IN")
            self._steps.append(("one", partial(values.is_in, self._list(), negated)))
        else:
            text = self._take_text()
            if not text:  # even with NOT, and for any operand
                self._steps[start:] = [("constant", False)]
            else:
                test = partial(values.passes, TEXT_TESTS[token.kind], text, negated)
                self._steps.append(("one", test))
        return _Term("condition", left.at)

    def _ordered(self, sign: str) -> _Term:
        place = self._unless()
        right = self._operand()
        self._check_ordered(right)
        self._join(place, None, ORDERS[sign])
        return right

    def _list(self) -> frozenset[str]:
        self._take("(")
        texts = {self._take_text()}
        while self._take(",", ")").kind == ",":
            texts.add(self._take_text())
        return frozenset(texts)

    def _between(self, value: _Term, negated: bool) -> None:
        self._check_ordered(value)
        self._steps.append(("again", 1))
        low = self._ordered("<" if negated else ">=")
        self._take("AND")
        place = self._unless()
        self._steps.append(("again", 2))
        high = self._ordered(">" if negated else "<=")
        self._join(place, negated, values.either if negated else values.both)
        self._steps.append(("two", values.second))
        if (not negated and low.kind == high.kind == "constant"
                and values.ordered(operator.gt, low.value, high.value)):
            self._refuse(low.at, "the second number of BETWEEN is smaller than the first")

    def _operand(self) -> _Term:
        """Parse a constant, a property, or an expression in parentheses, and the signs before
        it.
        """
        # Read all signs first; the depth check bounds the recursion of the parser.
        signs = []
        while self._token.kind in ("+", "-", "NOT"):
            signs.append(self._take())
            self._check_depth(signs[-1], len(signs))
        if self._token.kind not in _OPERANDS:
            self._refuse(self._token.at, "expected a property, a number, a quoted string or a "
                         f"parenthesis, got {_shown(self._token)}")
        # Parse the operand that the signs belong to.
        token = self._take()
        if token.kind == "(":
            self._depth += 1
            self._check_depth(token, 0)
            term = self._expression(_OR)
            self._take(")")
            self._depth -= 1
        elif token.kind == "name":
            self._steps.append(("property", token.text))
            term = _Term("property", token.at)
        else:
            term = _Term("constant", token.at, self._constant(token))
            self._steps.append(("constant", term.value))
        # Apply the signs from right to left: the one next to the operand comes first.
        for sign in reversed(signs):
            if sign.kind == "-":
                self._steps.append(("one", values.negative))
                term = _Term("negative", sign.at)
            elif sign.kind == "NOT":
                self._as_condition(term)
                self._steps.append(("one", values.inverse))
                term = _Term("condition", sign.at)
        return term

    def _constant(self, token: _Token) -> Value:
        if token.kind == "text":
            return _unquoted(token)
        if token.kind in _LITERALS:
            return _LITERALS[token.kind]
        if token.kind == "whole":
            digits = token.text.rstrip("lL")
            if len(digits) > 19 or int(digits) >= 1 << 63:
                self._refuse(token.at, "an integer has at most 64 bits")
            return int(digits)
        value = float(token.text)
        if not 0 < value < math.inf:
            self._refuse(token.at, "a decimal number must be above 0 and fit into a double (write "
                         "0 for 0.0)")
        return value

    # Types of operands

    def _check_depth(self, token: _Token, signs: int) -> None:
        if self._depth + signs > MAX_DEPTH:
            self._refuse(token.at, f"more than {MAX_DEPTH} nested parentheses or signs")

    def _check_ordered(self, term: _Term) -> None:
        if term.kind == "condition" or (term.kind == "constant" and not term.is_number):
            self._refuse(term.at, "<, >, <= and >= compare only numbers and properties")

    def _as_condition(self, term: _Term) -> None:
        if term.kind == "property":
            self._steps.append(("one", values.property_as_condition))
        elif term.kind == "negative" or (term.kind == "constant"
                                         and not isinstance(term.value, bool | None)):
            self._refuse(term.at, "expected a condition, got a number or a string")


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _shown(token: _Token) -> str:
    return "the end" if token.kind == "end" else repr(token.text[:40])
