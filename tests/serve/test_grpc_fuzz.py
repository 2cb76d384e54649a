"""Any bytes to any method of the service for 5.x clients: each call is answered."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from google.protobuf.message_factory import GetMessageClass

from rmqctl.ext.serve.grpc.protocol import MESSAGES, SERVICE
from rmqctl.ext.serve.grpc.server import _METHODS
from tests.serve.stubs import OK, Stub
from tests.serve.test_grpc import bodies, root, served, stub
from tests.support.share import RUN

__all__ = ["root", "served", "stub"]  # fixtures
_NAMES = ("", "T", "G", "%RETRY%G", "a/b", "\0", "x" * 300, "中")


def _value(field: Any, rng: random.Random, depth: int) -> Any:
    """Any value of a field's type."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_MESSAGE:
        return None if depth > 4 else _filled(GetMessageClass(field.message_type)(), rng, depth + 1)
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind == field.CPPTYPE_STRING:
        return rng.choice(_NAMES) if field.type == field.TYPE_STRING else rng.randbytes(
            rng.randrange(40))
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e300))
    bits = 31 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
    number: int = rng.choice((0, 1, (1 << bits) - 1, rng.getrandbits(bits)))
    signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    return -number if signed and rng.random() < 0.3 else number


def _filled(message: Any, rng: random.Random, depth: int = 0) -> Any:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            getattr(message, field.name)[rng.choice(_NAMES)] = rng.choice(_NAMES)
        elif field.is_repeated:
            values = [_value(field, rng, depth) for _ in range(rng.randrange(3))]
            getattr(message, field.name).extend(field_value for field_value in values
                                                if field_value is not None)
        elif (value := _value(field, rng, depth)) is not None:
            if field.message_type is not None:
                getattr(message, field.name).CopyFrom(value)
            else:
                setattr(message, field.name, value)
    return message


@pytest.mark.parametrize("method", sorted(_METHODS))
def test_any_request_is_answered(method: str, root: Path, stub: Stub) -> None:
    rng = random.Random(RUN.number(f"grpc {method}"))
    answer = MESSAGES[f"{method}Response"]
    call = stub.channel.unary_unary(f"/{SERVICE}/{method}", None, answer.FromString)
    for _ in range(40):
        data = _filled(MESSAGES[f"{method}Request"](), rng).SerializeToString()
        if rng.random() < 0.4:  # and now with damage
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(damaged) + 1)
                damaged[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
            data = bytes(damaged)
        assert call(data, 10, stub.metadata).status.code
    assert stub.code("QueryRoute", topic={"name": bodies(root)[0]}) == OK
