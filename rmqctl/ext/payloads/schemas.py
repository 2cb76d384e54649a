"""Decoders that need a schema: Avro (a JSON file) and Protobuf (a descriptor set)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from rmqctl.errors import StoreIOError, UsageError, require
from rmqctl.formats.budget import Budget, at_most

Reader = Callable[[bytes], Any]
_MAX_SCHEMA = 16 << 20


def _content(path: str, problem: str) -> bytes:
    """Return the content of a schema file.
    Raises: UsageError if ``path`` is empty, StoreIOError.
    """
    if not path:
        raise UsageError(f"--decode {problem}")
    try:
        with open(os.path.expanduser(path), "rb") as source:
            content = source.read(_MAX_SCHEMA + 1)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None
    if len(content) > _MAX_SCHEMA:
        raise UsageError(f"{path}: larger than {_MAX_SCHEMA >> 20} MiB, the limit for a schema")
    return content


# -- Avro -----------------------------------------------------------------------------------------


def avro(path: str) -> Reader:
    """Return a function that reads a body as one Avro datum without a file header. ``path``: path
    of the schema file.
    Raises: UsageError for an invalid schema, StoreIOError, MissingExtraError.
    """
    content = _content(path, "avro needs a schema file: avro:order.avsc")
    require("fastavro")
    import json

    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    named: dict[str, Any] = {}
    try:
        schema: Any = parse_schema(json.loads(content), named)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise UsageError(f"{path} is not an Avro schema: {type(error).__name__}: {error}") from None
    if any(_takes_no_bytes(items, named) for items in _items(schema)):
        raise UsageError(f"{path}: contains a list of zero-byte values; a body of a few bytes "
                         "could claim any number of them")

    from rmqctl.ext.payloads.avro_reader import reader

    return reader(schema, named)


def _items(schema: Any) -> Iterator[Any]:
    """Yield the item schemas of all arrays in a schema."""
    for part in schema if isinstance(schema, list) else [schema]:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "array":
            yield part["items"]
        for inner in (part.get("items"), part.get("values"), *(
                field["type"] for field in part.get("fields", ()))):
            if inner is not None:
                yield from _items(inner)
        if isinstance(part.get("type"), dict | list):
            yield from _items(part["type"])


def _takes_no_bytes(schema: Any, named: dict[str, Any], within: tuple[str, ...] = ()) -> bool:
    """Return whether all values of a parsed schema are encoded in zero bytes."""
    if isinstance(schema, str):
        if schema in within or schema not in named:
            return schema == "null"
        return _takes_no_bytes(named[schema], named, (*within, schema))
    if not isinstance(schema, dict):  # a union stores the index of its type
        return False
    kind = schema.get("type")
    if kind in ("record", "error"):
        return all(_takes_no_bytes(field["type"], named, (*within, schema["name"]))
                   for field in schema["fields"])
    if kind == "fixed":
        return schema.get("size") == 0
    return kind == "null" or (isinstance(kind, dict) and _takes_no_bytes(kind, named, within))


# -- Protobuf -------------------------------------------------------------------------------------


def protobuf(argument: str) -> Reader:
    """Return a function that reads a body as a Protobuf message.

    ``argument``: ``DESC#TYPE``. ``DESC`` is a file written by
    ``protoc --descriptor_set_out=DESC --include_imports``, ``TYPE`` is the type of the message.
    Raises: UsageError, StoreIOError, MissingExtraError.
    """
    # Read the descriptors of the user's file.
    path, sign, name = argument.rpartition("#")
    if not sign or not name:
        raise UsageError("--decode protobuf needs a descriptor file and a type: "
                         "protobuf:orders.desc#shop.Order")
    content = _content(path, "protobuf needs a descriptor file before the #")
    require("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

    # Find the type; each failure has its own message.
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(content).file
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except message.DecodeError:
        raise UsageError(f"{path} is not a descriptor set written by `protoc "
                         "--descriptor_set_out --include_imports`") from None
    except KeyError:
        types = ", ".join(sorted(f"{file.package}.{entry.name}".lstrip(".") for file in files
                                 for entry in file.message_type)[:20])
        raise UsageError(f"{path} has no type {name}; available: {types or 'none'}") from None
    except TypeError as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())} (`protoc --include_imports` adds "
                         "imported files)") from None

    def read(body: bytes) -> Any:
        message = kind.FromString(body)
        # Nearly any bytes parse as any message, but with unknown fields only.
        if body and not message.ListFields() and message.ByteSize():
            raise ValueError(f"no field of {name}, only unknown fields")
        return _Values().message(message)

    return read


class _Values:
    """Converts the values of a message, with a limit on their number."""

    def __init__(self) -> None:
        self._budget = Budget()

    def message(self, message: Any) -> dict[str, Any]:
        """Return the fields of a message that are set, by their names in the .proto file; enum
        values are names.
        """
        return {field.full_name if field.is_extension else field.name: self._field(field, value)
                for field, value in message.ListFields()}

    def _field(self, field: Any, value: Any) -> Any:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            of_value = kind.fields_by_name["value"]
            return {key: self._single(of_value, value[key]) for key in value}
        if field.is_repeated:
            at_most(len(value))
            return [self._single(field, item) for item in value]
        return self._single(field, value)

    def _single(self, field: Any, value: Any) -> Any:
        self._budget.take()
        if field.message_type is not None:
            if field.message_type.file.package == "google.protobuf":  # times, structs, wrappers
                from google.protobuf.json_format import MessageToDict

                return MessageToDict(value, preserving_proto_field_name=True)
            return self.message(value)
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return value if named is None else named.name
        return value
