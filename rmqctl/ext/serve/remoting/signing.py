"""Signatures of requests, as RocketMQ's ACL 1.0 has them (4.4.0 to 5.3.2)."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

from rmqctl.ext.serve.remoting.command import VERSION

ACCESS_KEY, SECRET_KEY, SIGNATURE = "AccessKey", "SecretKey", "Signature"
_ADDED_LATER, _LAST_ADDING_LATER = "_UNIQUE_KEY_QUERY", 399
"""Clients up to 4.9.3 add this field to what they have signed."""


def signature(ext: Mapping[str, str], body: bytes, secret: str, version: int = VERSION) -> bytes:
    """Return the signature of a request: HMAC-SHA1, in base64, of the values of its header's fields
    in the order of their names, and its body. ``AccessKey`` is one of the fields. ``version``: of
    the client.
    """
    unsigned = (SIGNATURE, *([_ADDED_LATER] if version <= _LAST_ADDING_LATER else ()))
    signed = "".join(ext[name] for name in sorted(ext) if name not in unsigned)
    code = hmac.new(secret.encode("utf-8", "replace"), signed.encode("utf-8", "replace"), "sha1")
    code.update(body)
    return b64encode(code.digest())
