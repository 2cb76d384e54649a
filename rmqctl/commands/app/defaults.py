"""Defaults of options: from the environment, then from the user's configuration file.

* ``RMQCTL_VERIFY_FAIL_ON`` sets ``--fail-on`` of ``verify``. An option that nearly all commands
  have also has a variable without a command's name, such as ``RMQCTL_TZ``.
* In ``~/.config/rmqctl/config.toml``, each table belongs to one command (``[verify]``,
  ``[query.key]``). The table ``[defaults]`` applies to all commands.

Options on the command line override these defaults.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rmqctl.commands.app.describe import former_names, parameter
from rmqctl.errors import StoreIOError, UsageError

if TYPE_CHECKING:
    from rmqctl.commands import CommandSpec

PREFIX = "RMQCTL"
FOR_ALL = "defaults"
#: Options with the same meaning in all commands, allowed in ``[defaults]`` and ``RMQCTL_OPTION``.
GENERAL = ("output", "quiet", "verbose", "no-progress", "tz", "jobs", "broker-conf",
           "commitlog-dir", "lang")
#: Options without a default, because they change a store or switch off a safeguard.
NEVER = frozenset({"apply", "yes", "force", "abandon", "drop-orphans", "restart-queue",
                   "update-baseline", "writable"})
_ASKS_ITSELF = frozenset({"lang"})
"""Options whose environment variable another module reads.

RMQCTL_LANG selects the language of text for people only. As a default of ``--lang``, it would also
translate output for programs.
"""
_REFUSED = "can only be given on the command line"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MAX_FILE_BYTES = 1 << 20


class Default(NamedTuple):
    """The default of an option, converted to the option's type, and where it was set."""

    value: Any
    origin: str


def config_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the user's configuration file, which might not exist."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "rmqctl", "config.toml")


def key_of(param: Any) -> str | None:
    """Return an option's name in the file (``fail-on``); None for an argument or ``--help``."""
    if param.param_type_name != "option" or param.name == "help":
        return None
    return next((name[2:] for name in param.opts if name.startswith("--")), None)


def variable(command: Iterable[str], key: str) -> str:
    """Return the environment variable of an option, such as ``RMQCTL_QUERY_KEY_LIMIT``."""
    return "_".join((PREFIX, *command, key)).replace("-", "_").upper()


def defaults_of(spec: CommandSpec, params: Iterable[Any], ctx: Any,
                registry: Iterable[CommandSpec]) -> dict[str, Default]:
    """Return the defaults of a command by parameter name. Raises: UsageError, StoreIOError."""
    by_key = {key: param for param in params if (key := key_of(param)) is not None}
    defaults: dict[str, Default] = {}
    path = config_path()
    if os.path.isfile(path):
        defaults = _DefaultsFile(path, registry).defaults(spec, by_key, ctx)
    for key, param in by_key.items():
        names = [variable(spec.name, key)]
        if key in GENERAL and key not in _ASKS_ITSELF:
            names.append(variable((), key))
        name = next((name for name in names if os.environ.get(name)), None)
        if name is not None:
            if key in NEVER:
                raise UsageError(f"{name}: --{key} {_REFUSED}")
            defaults[param.name] = _converted(_from_text(os.environ[name], param, name), param, ctx,
                                              name)
    return defaults


class _DefaultsFile:
    """The user's configuration file. Methods raise UsageError for any error in the file."""

    def __init__(self, path: str, registry: Iterable[CommandSpec]) -> None:
        import tomllib

        self._path = path
        self._commands = {spec.name for spec in registry}
        try:
            with open(path, "rb") as file:
                self._text = file.read(_MAX_FILE_BYTES).decode()
            self._tables: dict[str, Any] = tomllib.loads(self._text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{path}: {error}") from None
        except OSError as error:
            raise StoreIOError.from_oserror(error, path) from error
        self._check_names(self._tables, ())

    def defaults(self, spec: CommandSpec, by_key: Mapping[str, Any],
                 ctx: Any) -> dict[str, Default]:
        """Return the defaults of a command; its own table overrides ``[defaults]``."""
        defaults: dict[str, Default] = {}
        own: Any = self._tables
        for word in spec.name:
            own = own.get(word, {})
        for words, table in (((FOR_ALL,), self._tables.get(FOR_ALL, {})), (spec.name, own)):
            for key, value in table.items():
                if isinstance(value, dict):
                    continue
                origin = self._place(words, key)
                if key in NEVER:
                    raise UsageError(f"{origin}: --{key} {_REFUSED}")
                allowed = GENERAL if words == (FOR_ALL,) else by_key
                if key not in allowed:
                    former = next((now for now, param in by_key.items()
                                   if f"--{key}" in former_names(param)), None)
                    near = [former] if former else difflib.get_close_matches(key, allowed)
                    raise UsageError(f"{origin}: {' '.join(words)} has no {key!r}" + _near(near))
                if key in by_key:
                    param = by_key[key]
                    defaults[param.name] = _converted(_checked(value, param, origin), param, ctx,
                                                      origin)
        return defaults

    def _check_names(self, table: Mapping[str, Any], words: tuple[str, ...]) -> None:
        """Check that each table is named after a command or a group of commands, and that every
        option is in a table.

        Raises: UsageError.
        """
        for key, value in table.items():
            name = (*words, key)
            if isinstance(value, dict) and name != (FOR_ALL,):
                command_words = {command[len(words)] for command in self._commands
                                 if command[:len(words)] == words and len(command) > len(words)}
                if key not in command_words:
                    near = difflib.get_close_matches(
                        key, [*command_words, *([] if words else [FOR_ALL])])
                    raise UsageError(f"{self._place(name, None)}: no command "
                                     f"{' '.join(name)!r}" + _near(near))
                self._check_names(value, name)
            elif not isinstance(value, dict) and words not in self._commands:
                raise UsageError(f"{self._place(words, key)}: {key!r} must be in a table: "
                                 f"[{FOR_ALL}] or the table of a command, such as [verify]")

    def _place(self, words: tuple[str, ...], key: str | None) -> str:
        """Return ``FILE:LINE`` of a key, or of its table if ``key`` is None; else ``FILE``."""
        head: tuple[str, ...] = ()
        for number, line in enumerate(self._text.splitlines(), 1):
            bracket = re.match(r"\s*\[([^\[\]]+)\]", line)
            if bracket:
                head = tuple(part.strip(" \t\"'") for part in bracket[1].split("."))
                if key is None and head[:len(words)] == words:
                    return f"{self._path}:{number}"
            elif key is not None and head == words and re.match(
                    rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self._path}:{number}"
        return self._path


def _near(names: Iterable[str]) -> str:
    return f". Did you mean {', '.join(map(repr, names))}?" if names else ""


def _checked(value: Any, param: Any, origin: str) -> Any:
    """Return a value from the configuration file in the form that typer expects. Raises: UsageError
    if the value has the wrong type.
    """
    described = parameter(param)
    many = value if isinstance(value, list) and described.repeatable else [value]
    for item in many:
        kind = ("true or false" if described.type == "flag" else
                "an integer" if described.type in ("integer", "count") else "text")
        right = {"true or false": bool, "an integer": int}.get(kind, (str, int))
        if not isinstance(item, right) or (isinstance(item, bool) and kind != "true or false"):
            raise UsageError(f"{origin}: --{key_of(param)} expects {kind}, got {item!r}")
    texts = [str(item) if described.type not in ("flag", "integer", "count") else item
             for item in many]
    return texts if described.repeatable else texts[0]


def _from_text(text: str, param: Any, origin: str) -> Any:
    """Return the value in the ``text`` of an environment variable. For a repeatable option, split
    the text into words as a shell does.

    Raises: UsageError.
    """
    described = parameter(param)
    if described.type == "flag":
        if text.lower() not in (*_TRUE, *_FALSE):
            raise UsageError(f"{origin}: expected one of {', '.join((*_TRUE, *_FALSE))}, got "
                             f"{text!r}")
        return text.lower() in _TRUE
    if not described.repeatable:
        return text
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{origin}: {text!r}: {error}") from None


def _converted(value: Any, param: Any, ctx: Any, origin: str) -> Default:
    try:
        return Default(param.process_value(ctx, value), origin)
    except typer.BadParameter as error:
        raise UsageError(f"{origin}: {error.message}") from None
