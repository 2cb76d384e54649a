"""Signatures of requests by RocketMQ's ACL 1.0 (4.4.0 to 5.3.2)."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

from rmqctl.ext.serve.remoting.command import VERSION

ACCESS_KEY, SECRET_KEY, SIGNATURE = "AccessKey", "SecretKey", "Signature"
_ADDED_LATER, _LAST_ADDING_LATER = "_UNIQUE_KEY_QUERY", 399
"""A field that clients up to version 4.9.3 add to a request after signing it."""


def signature(ext: Mapping[str, str], body: bytes, secret: str, version: int = VERSION) -> bytes:
    """Return the signature of a request in base64.

    The HMAC-SHA1 covers the values of the header fields, in the order of the fields' names, and
    then the body. ``AccessKey`` is one of the fields. ``version``: the client's version.
    """
    unsigned = (SIGNATURE, *([_ADDED_LATER] if version <= _LAST_ADDING_LATER else ()))
    signed = "".join(ext[name] for name in sorted(ext) if name not in unsigned)
    code = hmac.new(secret.encode("utf-8", "replace"), signed.encode("utf-8", "replace"), "sha1")
    code.update(body)
    return b64encode(code.digest())
