"""Parameters of a command as data, from which help, ``commands`` and the reference are
generated.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import tzinfo
from typing import Any, Literal, NamedTuple

from rmqctl.parse_values import Address

_TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "flag"}


class Parameter(NamedTuple):
    """An argument or option of a command.

    ``names``: the name of an argument (``["STORE"]``), or the spellings of an option
    (``["--output", "-o"]``) without `former_names`.
    ``type``: flag, count, choice, text, integer, number, or the metavar in lower case (size, time,
    offset).
    """

    kind: Literal["argument", "option"]
    names: list[str]
    type: str
    choices: list[str] | None
    default: Any
    required: bool
    repeatable: bool
    env: str | None
    help: str
    metavar: str | None
    panel: str | None

    @property
    def value_name(self) -> str | None:
        """Return the placeholder of the value in help (``SIZE``, ``a|b``); None for flags and
        counts.
        """
        if self.type in ("flag", "count"):
            return None
        if self.metavar:
            return self.metavar
        if self.choices is not None:
            return "|".join(self.choices)
        return self.names[0] if self.kind == "argument" else self.type.upper()

    def as_row(self) -> dict[str, Any]:
        """Return the JSON object of ``rmqctl commands -o json``."""
        row = self._asdict()
        del row["panel"], row["metavar"]
        return row


def parameters(command: Any) -> Iterator[Parameter]:
    """Yield every visible parameter of a typer command in order, except the help option."""
    for param in command.params:
        if not getattr(param, "hidden", False):
            yield parameter(param)


def parameter(param: Any) -> Parameter:
    """Return the description of one typer parameter."""
    is_argument = param.param_type_name == "argument"
    former = former_names(param)
    flags = [name for name in (*param.opts, *param.secondary_opts) if name not in former]
    # Brackets in the metavar of an argument repeat ``required``.
    metavar = param.metavar.strip("[]") if is_argument and param.metavar else param.metavar
    env = param.envvar if isinstance(param.envvar, str) or param.envvar is None else param.envvar[0]
    descriptor = getattr(param, "type_descriptor", None)
    values = getattr(descriptor, "choices", None)
    choices = None if values is None else [str(choice) for choice in values]
    return Parameter(
        kind="argument" if is_argument else "option",
        names=[metavar or param.name.upper()] if is_argument else flags,
        type=_type_name(param, choices),
        choices=choices,
        default=None if param.required else _default(param.default),
        required=bool(param.required),
        repeatable=bool(param.multiple or param.nargs == -1),
        env=env,
        help=inspect.cleandoc(param.help or ""),
        metavar=metavar,
        panel=getattr(param, "rich_help_panel", None),
    )


def former_names(param: Any) -> list[str]:
    """Return the former names of an option: all long names after the first.

    Former names still work, but documentation and help omit them.
    """
    return [name for name in param.opts if name.startswith("--")][1:]


def _type_name(param: Any, choices: list[str] | None) -> str:
    if getattr(param, "count", False):
        return "count"
    if getattr(param, "is_flag", False):
        return "flag"
    if choices is not None:
        return "choice"
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", str)
    if param.metavar and param.param_type_name == "option" and param.metavar != "N":
        return str(param.metavar).lower()
    for kind, name in _TYPE_NAMES.items():
        if annotation is kind:
            return name
    return "text"


def _default(value: Any) -> Any:
    """Return the default ``value`` of a parameter in a form that JSON can represent."""
    if isinstance(value, tzinfo | Address):
        return str(value)
    if isinstance(value, list | tuple):
        return [_default(item) for item in value] or None
    return value
