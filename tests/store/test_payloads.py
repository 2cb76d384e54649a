"""Bodies decoded on request: each decoder, values within bounds, conditions on fields of bodies."""

from __future__ import annotations

import gzip
import importlib
import json
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import MissingExtraError, UsageError
from rmqctl.ext.payloads.decoders import decoder
from rmqctl.ext.payloads.decoding import Decoded, Decoding
from rmqctl.ext.payloads.limits import MAX_BYTES
from rmqctl.ext.payloads.values import plain
from rmqctl.formats import budget
from rmqctl.formats.local.sysflag import COMPRESSED
from rmqctl.store.decoded import MISSING, at
from rmqctl.store.query.conditions import Condition
from tests.support.share import examples

ROOT = Path(__file__).parents[2]
GZIP_BOMB = gzip.compress(bytes(MAX_BYTES + 1))


def short(value: object) -> str | None:
    """An id for a case: bodies are no names."""
    return value if isinstance(value, str) and len(value) < 40 else "x"


def decoded(spec: str, body: bytes, topic: str = "orders", sys_flag: int = 0,
            **properties: str) -> Decoded:
    return Decoding(spec).decode(topic, properties, sys_flag, body, "here")


@pytest.mark.parametrize(("spec", "body", "value", "kind"), [
    ("auto", b' \n{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}, "json"),
    ("auto", gzip.compress(b"[1]"), [1], "gzip+json"),
    ("auto", gzip.compress(gzip.compress(b"[1]")), [1], "gzip+gzip+json"),
    ("auto", gzip.compress(b"hello"), "hello", "gzip"),
    ("auto", gzip.compress(b"hel") + gzip.compress(b"lo"), "hello", "gzip"),
    ("auto", gzip.compress(b"\xff"), "/w==", "gzip+base64"),
    ("json", b"17", 17, "json"), ("json", b"null", None, "json"),
    ("json", b"1234567890123456789012345", 1234567890123456789012345, "json"),
    ("json", rb'["\ud83d\ude00", "\ud83d"]', ["\U0001f600", "\ufffd"], "json"),
    ("gbk", "张三".encode("gbk"), "张三", "gbk"),
    ("gbk", '{"name": "张三"}'.encode("gbk"), {"name": "张三"}, "gbk+json"),
    ("gzip", gzip.compress(b"{}"), {}, "gzip+json"),
    ("gzip+msgpack", gzip.compress(b"\x81\xa1a\x01"), {"a": 1}, "gzip+msgpack"),
    ("msgpack", msgspec.msgpack.encode({"a": b"\xff", 2: [datetime(1970, 1, 2, tzinfo=UTC)]}),
     {"a": "/w==", "2": [86_400_000]}, "msgpack"),
    ("msgpack", b"\xc7\x01\x05a", {"@ext": 5, "data": "YQ=="}, "msgpack"),
    ("hessian", b"\x48\x01a\x91\x5a", {"a": 1}, "hessian"),
    ("python:json.loads", b"[17]", [17], "python:json.loads"),
], ids=short)
def test_decoders(spec: str, body: bytes, value: Any, kind: str) -> None:
    decoded_body = decoded(spec, body)
    assert (decoded_body.value, decoded_body.kind, decoded_body.problem) == (value, kind, None)


@pytest.mark.parametrize("body", [
    b"hello", b"17", b'"text"', b"{", b"[1] 2", b"\xff\xfe", '{"name": "张三"}'.encode("gbk"),
    b"[" * 100_000, b'{"a": 1}\xff', b"{'a': 1}", b"[NaN]", rb'["\u"]', b"[" + b"1" * 5000 + b"]",
], ids=short)
def test_auto_leaves_alone_what_it_has_no_evidence_for(body: bytes) -> None:
    decoding = Decoding()
    assert decoding.decode("orders", {}, 0, body, "here") == (None, None, None, None)
    assert (decoding.problems, decoding.unknown) == (0, 1)


@pytest.mark.parametrize(("spec", "body", "words"), [
    ("json", b"hello", "malformed"), ("json", b"[" * 100_000, "nested too deep"),
    ("json", b"[" * 101 + b"]" * 101, "deeper than 100"), ("json", b"[1e999]", "out of range"),
    ("json", b" " * MAX_BYTES + b"1", "larger than 8 MiB"),
    ("auto", GZIP_BOMB, "decompresses to more than 8 MiB"), ("gzip", b"{}", "not gzip"),
    ("gzip+json", b"{}", "gzip: incorrect header"),
    ("auto", gzip.compress(b"x" * 99)[:-9], "is truncated"),
    ("gbk", b"\xff\xff", "'gbk' codec"), ("msgpack", b"\x81\x91\x01\x01", "key of a map"),
    ("msgpack", b"\x91" * 100_000, "nested too deep"), ("msgpack", b"\x01\x01", "trailing"),
    ("hessian", b"\x79" * 1000, "deeper than 100"),
    ("hessian", b"hello", "object of class 8, but"),
    ("python:json.loads", b"x", "Expecting value"), ("python:json.dumps", b"x", "TypeError: "),
    ("python:builtins.object", b"x", "TypeError"),
    ("python:builtins.iter", b"x", "a value of type bytes_i"),
], ids=short)
def test_what_does_not_decode_is_told_and_counted(spec: str, body: bytes, words: str) -> None:
    decoding = Decoding(spec)
    for _ in range(2):
        decoded = decoding.decode("orders", {}, 0, body, "physical offset 17")
        assert (decoded.value, decoded.kind) == (None, None)
        assert decoded.problem is not None
        assert words in decoded.problem
        assert "\n" not in decoded.problem
    assert decoding.problems == 2
    assert decoding.first_problem == f"physical offset 17: {decoded.problem}"


def test_compressed_bodies_are_decompressed_first() -> None:
    assert decoded("json", zlib.compress(b"[1]"), sys_flag=COMPRESSED).value == [1]
    # Marked as compressed, but stored as it was: it happens.
    assert decoded("json", b"[1]", sys_flag=COMPRESSED).value == [1]
    assert "marked as zlib" in str(decoded("auto", b"hello", sys_flag=COMPRESSED).problem)
    assert decoded("json", b"").kind is None


def test_internal_topics_by_name_whatever_is_asked() -> None:
    for spec in ("auto", "json", "msgpack"):
        decoded_body = decoded(spec, b"17,18", topic="RMQ_SYS_TRANS_OP_HALF_TOPIC", TAGS="d")
        assert (decoded_body.value, decoded_body.kind, decoded_body.internal) == ([17, 18], "op",
                                                                                  {"kind": "op"})
    # A check point that waits in the timer's topic.
    decoded_body = decoded("auto", b'{"so": 5}', topic="rmq_sys_wheel_timer", TAGS="ck",
                           REAL_TOPIC="rmq_sys_REVIVE_LOG_c", REAL_QID="1")
    assert (decoded_body.value, decoded_body.kind) == ({"startOffset": 5}, "pop-checkpoint")
    assert decoded_body.internal == {"kind": "timer", "topic": "rmq_sys_REVIVE_LOG_c",
                                     "queue_id": 1}
    # A body of an application in such a topic is the decoder's.
    decoded_body = decoded("json", b"17", topic="SCHEDULE_TOPIC_XXXX", REAL_TOPIC="orders")
    assert (decoded_body.value, decoded_body.kind) == (17, "json")


@pytest.mark.parametrize(("spec", "words"), [
    ("nothing", "unknown decoder 'nothing'; available: auto, json, gbk"),
    ("json:x", "unknown decoder"),
    ("avro:", "needs a schema file"), ("protobuf:a.desc", "needs a descriptor file and a type"),
    ("python:json", "expected a module and a function"), ("python:json.nothing", "AttributeError"),
    ("python:no_such_module.f", "ModuleNotFoundError"), ("python:sys.path", "not a function"),
    ("python:.f", "expected a module"), ("gzip+nothing", "unknown decoder 'nothing'"),
    ("", "unknown decoder")])
def test_decoders_that_are_none(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decoder(spec)


# -- plug-ins -------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python finds modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("orders_codec", "broken_codec"):
        sys.modules.pop(name, None)


def test_plugins_are_entry_points(module: Path) -> None:
    (module / "orders_codec.py").write_text(
        "def order(body, message):\n"
        "    return {'topic': message.topic, 'user': message.properties.get('user'),\n"
        "            'fields': body.decode().split('|')}\n")
    (module / "broken_codec.py").write_text("raise SystemError('no')\n")
    info = module / "orders_codec-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orders-codec\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[rmqctl.decoders]\norder = orders_codec:order\nbroken = broken_codec:order\n")
    importlib.invalidate_caches()
    decoded_body = decoded("order", b"1|2", user="u")
    assert decoded_body.value == {"topic": "orders", "user": "u", "fields": ["1", "2"]}
    assert decoded_body.kind == "order"
    assert "can't decode" in str(decoded("order", b"\xff").problem)
    with pytest.raises(UsageError, match="cannot use the plug-in broken_codec:order: SystemError"):
        decoder("broken")
    with pytest.raises(UsageError, match="broken, order"):
        decoder("others")


def test_a_copy_for_another_process_decodes_as_well() -> None:
    copy = pickle.loads(pickle.dumps(Decoding("gzip")))
    assert copy.decode("t", {}, 0, gzip.compress(b"[]"), "here").value == []


# -- schemas --------------------------------------------------------------------------------------

ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "price", "type": {
        "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "next", "type": ["null", "Order"], "default": None}]}


def schema_file(folder: Path, schema: Any) -> str:
    path = folder / "schema.avsc"
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return f"avro:{path}"


def test_avro(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(ORDER), {
        "id": 7, "price": Decimal("12.50"), "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "day": date(2024, 6, 21), "next": None})
    spec = schema_file(tmp_path, ORDER)
    decoded_body = decoded(spec, buffer.getvalue())
    assert (decoded_body.value, decoded_body.kind) == (
        {"id": 7, "price": "12.50", "at": 1000, "day": "2024-06-21", "next": None}, "avro")
    problem = decoded(spec, buffer.getvalue() + b"x").problem
    assert "trailing bytes after the datum: 1" in str(problem)
    assert decoded(spec, buffer.getvalue()[:-1]).problem
    # A chain of records: the compiled reader of fastavro would end the process.
    chain = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    assert decoded(schema_file(tmp_path, chain), b"\x02" * 1_000_000).problem == "nested too deeply"


@pytest.mark.parametrize("schema", [
    "not JSON", '"nothing"', '{"type": "record"}', "[" * 100_000, "17",
    {"type": "array", "items": "null"},
    {"type": "record", "name": "R", "fields": [
        {"name": "e", "type": {"type": "record", "name": "E", "fields": []}},
        {"name": "all", "type": {"type": "map", "values": {"type": "array", "items": "E"}}}]},
    {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}], ids=short)
def test_schemas_that_are_none_or_let_bodies_claim_anything(tmp_path: Path, schema: Any) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(UsageError, match=r"is not an Avro schema|zero-byte values"):
        decoder(schema_file(tmp_path, schema))


@pytest.fixture
def descriptors(tmp_path: Path) -> str:
    """What ``protoc --descriptor_set_out`` writes for a file with ``shop.Order``."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, timestamp_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"])
    order = file.message_type.add(name="Order")

    def add(number: int, name: str, kind: int, label: int = field.LABEL_OPTIONAL,
            type_name: str | None = None) -> None:
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)

    add(1, "id", field.TYPE_INT64)
    add(2, "tag_names", field.TYPE_STRING, field.LABEL_REPEATED)
    add(3, "state", field.TYPE_ENUM, type_name=".shop.State")
    add(4, "next", field.TYPE_MESSAGE, type_name=".shop.Order")
    add(5, "counts", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.CountsEntry")
    add(6, "at", field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add(7, "raw", field.TYPE_BYTES)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    states = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        states.value.add(name=name, number=number)
    stamp = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    path = tmp_path / "order.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString())
    return f"protobuf:{path}#shop.Order"


def test_protobuf(descriptors: str) -> None:
    body = (b"\x08\x81\x80\x80\x80\x80\x80\x80\x10" b"\x12\x01a\x12\x01b" b"\x18\x01"
            b"\x22\x02\x08\x07" b"\x2a\x05\x0a\x01k\x10\x05" b"\x32\x02\x08\x01" b"\x3a\x01\xff")
    decoded_body = decoded(descriptors, body)
    assert (decoded_body.value, decoded_body.kind) == ({
        "id": (1 << 53) + 1, "tag_names": ["a", "b"], "state": "PAID", "next": {"id": 7},
        "counts": {"k": 5}, "at": "1970-01-01T00:00:01Z", "raw": "/w=="}, "protobuf")
    assert decoded(descriptors, b"\x18\x09").value == {"state": 9}
    assert "no field of shop.Order" in str(decoded(descriptors, b"\x98\x06\x01").problem)
    assert decoded(descriptors, b"hello").problem
    assert decoded(descriptors, b"\x22\x7f" * 1000).problem
    deep = b""
    for _ in range(99):
        deep = b"\x22" + bytes([len(deep) & 127 | 128, len(deep) >> 7]) + deep
    assert decoded(descriptors, deep).kind == "protobuf"


def test_descriptors_that_are_none(descriptors: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no type shop.Bill; available: .*shop.Order"):
        decoder(descriptors.replace("shop.Order", "shop.Bill"))
    (tmp_path / "wrong.desc").write_bytes(b"hello")
    with pytest.raises(UsageError, match="is not a descriptor set"):
        decoder(f"protobuf:{tmp_path}/wrong.desc#shop.Order")


def test_a_missing_library_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "order.desc").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: (_ for _ in ()).throw(
        ModuleNotFoundError(name)))
    with pytest.raises(MissingExtraError, match=r"pip install 'rmqctl\[decode\]'"):
        decoder(f"protobuf:{tmp_path}/order.desc#shop.Order")


# -- values ---------------------------------------------------------------------------------------


def test_plain_values() -> None:
    assert plain({1: (None, True), None: float("inf"), b"k": {"s"}, "d": Decimal("1.50"),
                  "u": UUID(int=1), "t": datetime(2024, 1, 1), 2.5: bytearray(b"\xff")}) == {  # noqa: DTZ001
        "1": [None, True], "null": None, "aw==": ["s"], "d": "1.50",
        "u": "00000000-0000-0000-0000-000000000001", "t": "2024-01-01T00:00:00", "2.5": "/w=="}
    with pytest.raises(ValueError, match="a value of type object"):
        plain([object()])


def test_values_in_several_places_are_counted_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_VALUES", 10_000)
    laughs: list[Any] = ["ha"]
    for _ in range(20):
        laughs = [laughs] * 10
    with pytest.raises(ValueError, match="more than 10,000 values"):
        plain(laughs)


@settings(max_examples=examples(30))
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(
    st.characters()) | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(), inner)))
def test_plain_values_are_json_and_are_text_that_can_be_encoded(value: Any) -> None:
    json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode()


def test_paths() -> None:
    value = {"a": {"b": [{"c": 1}, 2]}, "1": "x", "": "e"}
    assert at(value, ("a", "b", "0", "c")) == 1
    assert at(value, ("1",)) == "x"
    assert at(value, ("",)) == "e"
    for path in (("b",), ("a", "b", "2"), ("a", "b", "-1"), ("a", "b", "x"), ("1", "0"),
                 ("a", "b", "9" * 30), ("a", "b", "\u0661")):
        assert at(value, path) is MISSING


# -- conditions -----------------------------------------------------------------------------------

BODY = {"n": 2000, "f": 19.99, "t": "9", "w": "open", "yes": True, "none": None, "big": 1 << 70,
        "tags": ["a", "b"], "empty": [], "o": {"x": 1}, "l": [{"sku": "p"}, {"sku": "q"}]}


@pytest.mark.parametrize(("text", "wanted"), [
    ("n > 1999", True), ("n > 2000", False), ("n >= 2e3", True), ("n = 2000.0", True),
    ("n != 2000", False), ("n = x", False), ("n != x", True), ("n > x", False), ("n ~ ^20", True),
    ("f = 19.99", True), ("f < 20", True), ("f > 1e400", False), ("f > 19", True),
    ("t > 10", False), ("t = 9", True), ("t = 9.0", False), ("w = open", True),
    ("w > closed", True),
    ("w ~ ^o", True), ("w !~ ^o", False), ("yes = true", True), ("yes = 1", False),
    ("yes > 0", False), ("yes != false", True), ("none = null", True), ("none != x", True),
    ("none > 0", False), ("big > 1180591620717411303423", True),
    ("big = 1180591620717411303424", True),
    ("tags = b", True), ("tags != b", False), ("tags != c", True), ("empty = x", False),
    ("empty != x", False), ("o = 1", False), ("o != 1", False), ("o.x = 1", True),
    ("o.y = 1", False), ("o.y != 1", False), ("o.y !~ 1", False), ("l.1.sku = q", True),
    ("l.2.sku != q", False), ("n.x = 1", False)])
def test_conditions_on_fields_of_bodies(text: str, wanted: bool) -> None:
    name, sign, value = text.split()
    condition = Condition.of(f"body.{name}", sign, value, Decoding("json"))
    assert condition._test_decoded(at(BODY, tuple(name.split(".")))) is wanted
    assert condition._test_decoded(MISSING) is False


def test_conditions_on_bodies_need_a_decoder() -> None:
    with pytest.raises(UsageError, match=r"body\.n: this command does not decode bodies"):
        Condition.of("body.n", "=", "1")
    with pytest.raises(UsageError, match=r"no field 'body\.'"):
        Condition.of("body.", "=", "1", Decoding())
    costs = [Condition.of(name, "=", "1", Decoding()).cost for name in (
        "queue_id", "tags", "body.a")]
    assert costs == [0, 1, 2]


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("spec", "body"), [
    ("json", lambda: b"[" + b"[]," * (MAX_BYTES // 3 - 1) + b"1]"),
    ("msgpack", lambda: b"\xdd" + (MAX_BYTES - 5).to_bytes(4) + b"\x80" * (MAX_BYTES - 5)),
    ("hessian", lambda: b"\x57" + b"\x78" * (MAX_BYTES - 2) + b"Z")], ids=short)
def test_memory_of_the_worst_bodies_is_bounded(spec: str, body: Callable[[], bytes]) -> None:
    """In a process of its own: the most it had. One that begins anew, as a fork of this one has
    the locks of threads that it has not.
    """
    done = subprocess.run([sys.executable, "-c", _GROWN, spec], input=body(), cwd=ROOT,
                          capture_output=True, check=True, timeout=120)
    grown, problem = done.stdout.decode().split(" ", 1)
    assert "values" in problem
    assert int(grown) < 800 << 10, f"{grown} KiB"


_GROWN = """
import resource, sys
from rmqctl.ext.payloads.decoding import Decoding
body = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
problem = Decoding(sys.argv[1]).decode("t", {}, 0, body, "here").problem
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, problem)
"""
