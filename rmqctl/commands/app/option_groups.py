"""Option groups: dataclasses that declare options for several commands.

A command has one parameter for a group, such as ``store: StoreOptions``, and receives an instance
of the dataclass. In the signature that typer reads, the group's options replace this parameter.
``Annotated[StoreOptions, pick("commitlog_dirs")]`` selects some of the group's options, in this
order, or changes their defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import copy_context
from typing import Annotated, Any, NamedTuple

from typer.models import ArgumentInfo

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_NO_DEFAULT = inspect.Parameter.empty


class OptionGroup:
    """Base class of option groups, which are frozen dataclasses with typer parameters as fields."""

    def value(self) -> Any:
        """Return the object that the command receives for this group. Subclasses may return a
        different object instead of the group itself.
        """
        return self

    def remarks(self) -> Iterable[str]:
        """Return notes about the given options, to print before the command runs."""
        return ()

    def warnings(self) -> Iterable[str]:
        """Return warnings about the given options, to print before the command runs."""
        return ()


class Pick(NamedTuple):
    """A selection from an option group.

    ``names``: field names of the selected options; None: all. ``defaults``: values that replace the
    group's own defaults.
    """

    names: tuple[str, ...] | None
    defaults: Mapping[str, Any]


def pick(names: str | None = None, **defaults: Any) -> Pick:
    """Return an annotation that selects options of a group. Arguments are always included.

    ``names``: field names, separated by spaces, in the order of the help; None: all.
    ``defaults``: values of fields that are not selected, or defaults of selected fields.
    """
    return Pick(None if names is None else tuple(names.split()), defaults)


class _PickedGroup(NamedTuple):
    kind: type[OptionGroup]
    pick: Pick


def spelled_out(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for typer that calls ``command`` and has a separate parameter for each
    option of each group.

    Arguments of groups come before the command's own arguments.
    """
    arguments: list[inspect.Parameter] = []
    others: list[inspect.Parameter] = []
    groups: dict[str, tuple[_PickedGroup, dict[str, str]]] = {}
    # Replace each group by its options, and remember which option is which field.
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = _group_of(parameter.annotation)
        if group is None:
            others.append(parameter.replace(kind=_KEYWORD))
            continue
        names = {}
        for field, flat, is_argument in _flat(parameter.name, group):
            (arguments if is_argument else others).append(flat)
            names[flat.name] = field
        groups[parameter.name] = group, names

    # At run time, rebuild the groups from the options and show their remarks and warnings.
    def run(**given: Any) -> Any:
        remarks: list[str] = []
        warnings: list[str] = []
        for name, ((kind, picked), names) in groups.items():
            values = {field: given.pop(flat) for flat, field in names.items()}
            group = kind(**{**picked.defaults, **values})
            remarks += group.remarks()
            warnings += group.warnings()
            given[name] = group.value()
        for text in remarks:
            given["out"].note(text)
        for text in warnings:
            given["out"].warn(text)
        # Settings of the run (such as the zone of times) end with the context.
        return copy_context().run(command, **given)

    # Give the function the signature from which typer creates the options.
    for name in ("__name__", "__doc__", "__module__"):
        setattr(run, name, getattr(command, name))
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature([*arguments, *others])  # type: ignore[attr-defined]
    return run


def _group_of(annotation: Any) -> _PickedGroup | None:
    """Return the option group of an annotation (``Group`` or ``Annotated[Value, Group]``); None if
    the annotation names no group.
    """
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is Annotated else (
        annotation,)
    kind = next((part for part in parts
                 if isinstance(part, type) and issubclass(part, OptionGroup)), None)
    if kind is None:
        return None
    return _PickedGroup(kind, next((part for part in parts if isinstance(part, Pick)), pick()))


def _flat(prefix: str, group: _PickedGroup) -> Iterator[tuple[str, inspect.Parameter, bool]]:
    """Yield (field name, typer parameter, whether the parameter is an argument) for each selected
    field of a group.
    """
    hints = typing.get_type_hints(group.kind, include_extras=True)
    fields = {field.name: field
              for field in dataclasses.fields(group.kind)}  # type: ignore[arg-type]
    arguments = [name for name in fields
                 if any(isinstance(part, ArgumentInfo) for part in hints[name].__metadata__)]
    names = group.pick.names
    options = [name for name in fields if name not in arguments] if names is None else names
    for name in (*arguments, *options):
        default = group.pick.defaults.get(name, fields[name].default)
        yield name, inspect.Parameter(
            f"{prefix}_{name}", _KEYWORD, annotation=hints[name],
            default=_NO_DEFAULT if default is dataclasses.MISSING else default), name in arguments
