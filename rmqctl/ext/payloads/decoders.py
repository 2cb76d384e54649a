"""The decoders of ``--decode`` by name: built-in decoders and plug-ins.

A decoder receives a body, as its producer sent it, and its `MessageInfo`. It returns (value, name
of the format). It may raise any exception, which is reported for that message only. `limits` runs
the decoder within bounds, and converts the value to plain types.

A plug-in or a ``python:`` function receives the body, and the message if it has a parameter
``message``. It returns the value. CONTRIBUTING.md describes how to add a decoder.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.ext.payloads.limits import MAX_BYTES, Decoder, MessageInfo, Plain
from rmqctl.ext.payloads.values import plain
from rmqctl.formats.bodies import members
from rmqctl.formats.budget import MAX_DEPTH, MAX_VALUES, BudgetError, at_most

PLUGINS = "rmqctl.decoders"
"""The entry point group in which packages register their decoders."""
_GZIP = b"\x1f\x8b\x08"
_MAX_GZIP = 3
"""Maximum number of nested gzip layers that are decompressed."""


class NotRecognized(Exception):  # noqa: N818
    """Raised if `auto` does not recognize a body, which may be plain text. This is not an error."""


def decoder(spec: str) -> Decoder:
    """Return the decoder that ``--decode`` names.
    Raises: UsageError, StoreIOError, MissingExtraError.
    """
    if spec.startswith("gzip+"):
        return _unpacking(decoder(spec.removeprefix("gzip+")))
    name, sign, argument = spec.partition(":")
    if name in _WITH_ARGUMENT:
        return _WITH_ARGUMENT[name](argument)
    if not sign and name in _PLAIN:
        return _PLAIN[name]
    return _plugin(spec)


def names() -> list[str]:
    """Return the names of all decoders except plug-ins, in the form that users type."""
    return [*_PLAIN, "avro:SCHEMA", "protobuf:DESC#TYPE", "python:module.function"]


# -- without a schema -----------------------------------------------------------------------------


def json_value(body: bytes) -> Any:
    """Return a UTF-8 JSON body as a plain value. Raises: ValueError."""
    containers = body.count(b"{") + body.count(b"[")
    if body.count(b",") + containers > MAX_VALUES:
        marks = _JSON_TEXT.sub(b"", body)  # characters in texts do not count
        at_most(marks.count(b",") + marks.count(b"{") + marks.count(b"["))
    try:
        value = _fast_json()(body)
        # The value is plain already, and cannot be deep with few objects and lists.
        return value if containers <= MAX_DEPTH else plain(value)
    except ValueError:
        body.decode()  # reports invalid UTF-8 with its position
        if b"\\u" not in body:
            raise
    import json  # accepts lone surrogates, which Java writes

    return plain(json.loads(body.decode(), parse_constant=_no_number))


_JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


@cache
def _fast_json() -> Callable[[bytes], Any]:
    """Return a decoder whose module is imported only when the first body is decoded."""
    from msgspec import json as fast

    return fast.Decoder().decode


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json(body: bytes, _message: MessageInfo) -> tuple[Any, str]:
    return Plain(json_value(body)), "json"


def _structure(body: bytes) -> Plain:
    """Return the JSON object or list in a body.
    Raises: NotRecognized for anything else: a number or a word may be plain text.
    """
    if body[:64].lstrip()[:1] not in (b"{", b"["):
        raise NotRecognized
    try:
        return Plain(json_value(body))
    except BudgetError:
        raise
    except (ValueError, RecursionError):
        raise NotRecognized from None


def _auto(body: bytes, message: MessageInfo, depth: int = 0) -> tuple[Any, str]:
    """Decode a body only if its format is certain: gzip (by its magic), or a JSON object or list.
    Raises: NotRecognized.
    """
    if body.startswith(_GZIP) and depth < _MAX_GZIP:
        content = _gunzip(body)
        try:
            value, kind = _auto(content, message, depth + 1)
        except NotRecognized:
            try:
                return content.decode(), "gzip"
            except UnicodeDecodeError:
                return base64.b64encode(content).decode("ascii"), "gzip+base64"
        return value, f"gzip+{kind}"
    return _structure(body), "json"


def _gunzip(body: bytes) -> bytes:
    """Return the decompressed content of all gzip members. Raises: ValueError."""
    try:
        return members(body, lambda: zlib.decompressobj(wbits=31), MAX_BYTES, "gzip member")
    except zlib.error as error:
        raise ValueError(f"gzip: {str(error).rpartition(': ')[2]}") from None


def _gzip(body: bytes, message: MessageInfo) -> tuple[Any, str]:
    if not body.startswith(_GZIP):
        raise ValueError("not gzip: invalid magic")
    return _auto(body, message)


def _unpacking(inner: Decoder) -> Decoder:
    def decode(body: bytes, message: MessageInfo) -> tuple[Any, str]:
        value, kind = inner(_gunzip(body), message)
        return value, f"gzip+{kind}"

    return decode


def _gbk(body: bytes, _message: MessageInfo) -> tuple[Any, str]:
    """Return the body as GBK text, or as a JSON value if the text is a JSON object or list."""
    text = body.decode("gbk")
    try:
        return _structure(text.encode()), "gbk+json"
    except NotRecognized:
        return text, "gbk"


def _msgpack(body: bytes, _message: MessageInfo) -> tuple[Any, str]:
    from msgspec import msgpack

    if len(body) > MAX_VALUES:  # a value takes at least one byte
        from rmqctl.ext.payloads.msgpack import count

        at_most(count(body, MAX_VALUES))
    return msgpack.decode(body, ext_hook=lambda code, data: {
        "@ext": code, "data": bytes(data)}), "msgpack"


def _hessian(body: bytes, _message: MessageInfo) -> tuple[Any, str]:
    from rmqctl.ext.payloads.hessian import loads

    return loads(body), "hessian"


_PLAIN: dict[str, Decoder] = {
    "auto": _auto, "json": _json, "gbk": _gbk, "gzip": _gzip, "msgpack": _msgpack,
    "hessian": _hessian}


# -- with a schema, or a function -----------------------------------------------------------------


def _avro(argument: str) -> Decoder:
    from rmqctl.ext.payloads.schemas import avro

    read = avro(argument)
    return lambda body, _message: (read(body), "avro")


def _protobuf(argument: str) -> Decoder:
    from rmqctl.ext.payloads.schemas import protobuf

    read = protobuf(argument)
    return lambda body, _message: (read(body), "protobuf")


def _python(argument: str) -> Decoder:
    """Return a decoder that calls a function of an importable module. The function runs as the
    user's own code.
    """
    import importlib

    module, dot, function = argument.rpartition(".")
    if not dot or not module or not function:
        raise UsageError("--decode python: expected a module and a function, for example "
                         "python:decoders.order")
    try:
        decoder = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001  # importing runs code that may raise anything
        raise UsageError(f"--decode python:{argument}: {_words(error)} (Python's own search path "
                         "applies: PYTHONPATH=. adds this folder)") from None
    return _calling(decoder, f"python:{argument}")


def _calling(function: Any, name: str) -> Decoder:
    if not callable(function):
        raise UsageError(f"--decode {name}: not a function but a {type(function).__name__}")
    import inspect

    try:
        wants_message = "message" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        wants_message = False
    if wants_message:
        return lambda body, message: (function(body, message=message), name)
    return lambda body, _message: (function(body), name)


_WITH_ARGUMENT: dict[str, Callable[[str], Decoder]] = {
    "avro": _avro, "protobuf": _protobuf, "python": _python}


def _plugin(name: str) -> Decoder:
    from importlib.metadata import entry_points

    plugins = entry_points(group=PLUGINS)
    for point in plugins:
        if point.name == name:
            try:
                loaded = point.load()
            except Exception as error:  # noqa: BLE001  # a package may raise anything
                raise UsageError(f"--decode {name}: cannot use the plug-in {point.value}: "
                                 f"{_words(error)}") from None
            return _calling(loaded, name)
    more = sorted({point.name for point in plugins})
    raise UsageError(f"unknown decoder {name!r}; available: {', '.join([*names(), *more])}")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
