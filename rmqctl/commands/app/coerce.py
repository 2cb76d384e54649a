"""Conversion of command-line words to values without pydantic.

typer converts every value through pydantic, whose import and schema building take longer than a
query. This module fills typer's own cache of converters instead. If typer had no such cache, it
would use pydantic, and a test would fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_origin

import typer

from rmqctl.errors import UsageError
from rmqctl.parse_values import ungrouped

_CACHE = "_runtime_param"


class _Coercion:
    """A converter of a parameter's values, with the only method that typer calls on converters."""

    def __init__(self, convert: Callable[[Any], Any], many: bool) -> None:
        self._convert = convert
        self._many = many

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert the typed ``value`` of the parameter ``param``. Raises: BadParameter, which names
        the problem and the option.
        """
        if value is None:
            return () if self._many else None
        try:
            if self._many:
                return [self._convert(item) for item in value]
            return self._convert(value)
        except (ValueError, UsageError) as exc:
            raise typer.BadParameter(str(exc), ctx=ctx, param=param) from exc


def use_light_coercion(params: Iterable[Any]) -> None:
    """Set a fast converter for each typer parameter in ``params`` that has a plain type."""
    for param in params:
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is None or getattr(param, _CACHE, "absent") is not None:
            continue
        convert = _converter(descriptor.annotation, descriptor)
        if convert is not None:
            many = bool(param.multiple or param.nargs == -1)
            setattr(param, _CACHE, _Coercion(convert, many))


def _converter(annotation: Any, descriptor: Any) -> Callable[[Any], Any] | None:
    info = descriptor.parameter_info
    if info.parser is not None:
        parser: Callable[[Any], Any] = info.parser
        return parser
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    choices = descriptor.choices
    if choices is not None:
        if not all(isinstance(choice, str) for choice in choices):
            return None
        return lambda value: _choice(value, choices)
    if annotation is bool:
        return _flag
    if annotation is str:
        return str
    if annotation is int:
        return lambda value: _bounded(_whole_number(value), info.min, info.max)
    return None


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected true or false, got {value!r}")


def _choice(value: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice == value:
            return choice
    raise ValueError(f"expected one of {', '.join(choices)}, got {value!r}")


def _whole_number(value: Any) -> int:
    if isinstance(value, int):
        return value
    digits = ungrouped(value)
    if re.fullmatch("[+-]?[0-9]{1,19}", digits) is None:
        raise ValueError(f"expected an integer, got {value!r}")
    return int(digits)


def _bounded(value: int, least: float | None, most: float | None) -> int:
    if least is not None and value < least:
        raise ValueError(f"{value} is less than the minimum {least}")
    if most is not None and value > most:
        raise ValueError(f"{value} is more than the maximum {most}")
    return value
