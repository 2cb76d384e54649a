"""The fast ways to read and write headers, against the general ones."""

from __future__ import annotations

import random

from rmqctl.ext.serve.remoting import command
from rmqctl.ext.serve.remoting.codes import REQUESTS, Failed
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.remoting.frame import FrameError
from tests.support.share import RUN

_PIECES = (
    b'"code"', b'"opaque"', b'"flag"', b'"version"', b'"language"', b'"remark"', b'"extFields"',
    b'"a"', b'"\\u00e9\\ud83d\\ude00"', b'"\\ud800"', b'"\xc3\xa9"', b'"\xff"', b'"\\""', b"{",
    b"}", b"[", b"]", b":", b":", b",", b",", b"0", b"11", b"-1", b"1.0", b"1e2", b"2147483647",
    b"2147483648", b"-2147483649", b"99999999999999999999", b"null", b"true", b'"JAVA"', b'"12"',
    b"code:", b" ", b"\n", b'"')


def test_plain_headers_are_read_as_all_others() -> None:
    source = random.Random(RUN.seed)
    plain = write_command(Command(11, 5, 1, {"topic": "t\u00e9", "n": "1"}, "\U0001f600 why"))[8:]
    fields = (b'"code":%b', b'"opaque":%b', b'"extFields":{"a":%b,"b":"c"}', b'"extFields":%b',
              b'"language":%b', b'"remark":%b', b'%b:1', b'"version":1,"version":%b')
    read = 0
    for number in range(4000):
        if number % 2:
            data = bytearray(plain)
            for _ in range(source.randrange(3)):
                at = source.randrange(len(data))
                data[at:at + source.randrange(3)] = source.choice(_PIECES)
        else:
            data = bytearray(b"{%b}" % b",".join(
                source.choice(fields) % source.choice(_PIECES) for _ in range(3)))
        writers = []
        for way in (command._read_json_header, command._read_any_header):
            try:
                writers.append(way(bytes(data)))
            except FrameError as error:
                writers.append(str(error))
        if b"\xff" in data and isinstance(writers[1], str):
            continue  # what is no text may stand in what nobody reads
        assert writers[0] == writers[1], bytes(data)
        read += not isinstance(writers[0], str)
    assert read > 500


def test_headers_are_written_as_any_json() -> None:
    source = random.Random(RUN.seed)
    texts = [chr(number) for number in (*range(256), 0x2028, 0xD800, 0xDC80, 0x1F600)]
    for text in (*texts, *("".join(source.choices(texts[:128], k=9)) for _ in range(100))):
        ext = {text: "x" + text}
        header = command._Head(-1, ext, 1, "JAVA", 1 << 31, text)
        value = {"code": -1, "extFields": ext, "flag": 1, "language": "JAVA", "opaque": 1 << 31,
                 "remark": text, "serializeTypeCurrentRPC": "JSON", "version": command.VERSION}
        assert command._write_header(header) == command.write_json(value) == command._encode(
            value).encode()


def test_fields_are_read_as_one_by_one() -> None:
    source = random.Random(RUN.seed)
    values = ("", "0", "-1", "7", "007", "+7", " 7", "1_0", "2147483647", "2147483648",
              "-2147483648", "9223372036854775807", "9223372036854775808", "true", "TRUE", "1",
              "yes", "T\u00e9")
    read = 0
    for _ in range(3000):
        request = source.choice(list(REQUESTS.values()))
        ext = {name: source.choice(values) if source.random() < 0.3 else (
            "5" if kind != "text" else "T") for name, (kind, required) in request.fields.items()
            if required or source.random() < 0.5}
        writers = []
        for way in (request.read, request._read):
            try:
                writers.append(way(ext))
            except Failed as answer:
                writers.append(str(answer))
        assert writers[0] == writers[1], ext
        read += isinstance(writers[0], dict)
    assert read > 1000
