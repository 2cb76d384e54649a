"""Metadata of any version, also that of 5.1.0 and 5.1.1, whose segment tables have objects for
keys and so are no JSON (tiered.md §6).
"""

from __future__ import annotations

import re
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json, fastjson
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names

_PART = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^"{}\[\]:,]++|"', re.DOTALL)
_MOST_DEPTH = config_json.MAX_DEPTH


def read(data: bytes) -> meta.Metadata:
    """The content of a metadata file of any version. FormatError where it is none."""
    try:
        return meta.parse(data)
    except FormatError as problem:
        try:
            text = _with_text_keys(data.decode("utf-8", "surrogateescape"))
        except FormatError:
            raise problem from None
        if text is None:
            raise
    return meta.of_value(config_json.parse(text.encode("utf-8", "surrogateescape")).value)


def _with_text_keys(text: str) -> str | None:
    """The text with the place of a queue for every key that is an object; None without any.

    FormatError where the brackets are not paired, or such a key names no queue.
    """
    out: list[str] = []
    stack: list[str] = []  # "{": a key comes; ":": its value; "[": in a list
    key_from: list[int] = []  # where in `out` a key that is an object began, and how deep
    found = False
    for hit in _PART.finditer(text):
        part = hit[0]
        if part in "{[" and part:
            if stack and stack[-1] == "{" and part == "{" and _is_key_place(out):
                key_from += [len(out), len(stack)]
                found = True
            if len(stack) >= _MOST_DEPTH:
                raise FormatError("too deep", offset=hit.start())
            stack.append(part)
        elif part == ":" and stack and stack[-1] == "{":
            stack[-1] = ":"
        elif part == "," and stack and stack[-1] == ":":
            stack[-1] = "{"
        elif part in "}]" and part:
            if not stack:
                raise FormatError("a bracket too many", offset=hit.start())
            stack.pop()
            if key_from and key_from[-1] == len(stack):
                start = key_from[-2]
                del key_from[-2:]
                whole = "".join([*out[start:], part])
                out[start:] = [fastjson.build(_place(whole)).decode("utf-8", "surrogateescape")]
                continue
        out.append(part)
    if stack:
        raise FormatError("brackets are left open", offset=len(text))
    return "".join(out) if found else None


def _is_key_place(out: list[str]) -> bool:
    for one in reversed(out):
        if one.strip():
            return one in ("{", ",")
    return False


def _place(text: str) -> str:
    value: Any = config_json.parse(text.encode("utf-8", "surrogateescape")).value
    try:
        broker, topic, number = value["brokerName"], value["topic"], value["queueId"]
        if not isinstance(broker, str) or not isinstance(topic, str) or type(number) is not int:
            raise TypeError
    except (KeyError, TypeError):
        raise FormatError("a key that is no queue", offset=0) from None
    return names.metadata_path(broker, topic, number)
