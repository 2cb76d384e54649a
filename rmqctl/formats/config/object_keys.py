"""Map keys that are objects: fastjson writes them so, though it is no JSON.

The segment tables of tiered storage 5.1.0 and 5.1.1 (tiered.md §16), and the offsets.json of a
broadcasting consumer (``~/.rocketmq_offsets/CLIENT/GROUP``), whose keys are queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json, fastjson

_PART = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^"{}\[\]:,]++|"', re.DOTALL)
_MOST_DEPTH = config_json.MAX_DEPTH


def as_texts(data: bytes, name: Callable[[Any], str]) -> bytes | None:
    """The file with ``name(key)`` for every key that is an object; None without any.

    FormatError where the brackets are not paired, or of ``name``.
    """
    text = data.decode("utf-8", "surrogateescape")
    out: list[str] = []
    stack: list[str] = []  # "{": a key comes; ":": its value; "[": in a list
    key_from: list[int] = []  # where in `out` a key that is an object began, and how deep
    has_object_key = False
    for hit in _PART.finditer(text):
        part = hit[0]
        if part in "{[" and part:
            if stack and stack[-1] == "{" and part == "{" and _is_key_place(out):
                key_from += [len(out), len(stack)]
                has_object_key = True
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
                key_text = "".join([*out[start:], part])
                key = config_json.parse(key_text.encode("utf-8", "surrogateescape")).value
                out[start:] = [fastjson.build(name(key)).decode("utf-8", "surrogateescape")]
                continue
        out.append(part)
    if stack:
        raise FormatError("brackets are left open", offset=len(text))
    return "".join(out).encode("utf-8", "surrogateescape") if has_object_key else None


def _is_key_place(out: list[str]) -> bool:
    for token in reversed(out):
        if token.strip():
            return token in ("{", ",")
    return False


def queue_of(value: Any) -> tuple[str, str, int]:
    """(broker name, topic, queue id) of a key that is a queue. FormatError."""
    try:
        broker, topic, number = value["brokerName"], value["topic"], value["queueId"]
        if not isinstance(broker, str) or not isinstance(topic, str) or type(number) is not int:
            raise TypeError
    except (KeyError, TypeError):
        raise FormatError("a key that is no queue", offset=0) from None
    return broker, topic, number


def queue_name(value: Any) -> str:
    """``TOPIC@BROKER@QUEUE`` for a key that is a queue. FormatError."""
    broker, topic, number = queue_of(value)
    return f"{topic}@{broker}@{number}"
